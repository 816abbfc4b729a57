"""Writes docs/reference/{configuration,topic-keys,apis,metrics}.md from the code they describe.

Usage:
    python tools/reference_docs.py            write the pages
    python tools/reference_docs.py --check    fail if a page differs from the code
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.keys import INT64_MAX, Option, OptionType, options_of
from tidemill.metadata.image.group_keys import GROUP_KEYS
from tidemill.metadata.image.topic_keys import TOPIC_KEYS, Effect, TopicKey
from tidemill.server.handlers import HANDLERS
from tidemill.server.metrics.broker_metrics import METRICS
from tidemill.wire.api_keys import API_SPECS

__all__ = ["main", "pages"]

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"

CONFIGURATION = """\
# Broker configuration

A broker runs without any configuration. Keys are set as `key=value` in three places; the later one
wins:

1. the lines of a file, `tidemill up --config FILE` (`#` starts a comment line);
2. flags, `tidemill up --set key=value`;
3. the arguments of an embedded broker.

An unknown key, or a value outside its range, is an error that names the key and what is allowed.
Keys of scope *cluster* should have the same value on all brokers.

A key that changes *at run time* can also be set with any Kafka admin client: for one broker, under
its id, or for all brokers, under the empty name. What was set for the one broker wins over what was
set for all, and both over the three places above. A key of scope *cluster* can only be set for all.

"""

GROUP_PART = """
## Group keys

Set with any Kafka admin client for one consumer group, which need not exist yet. Other group keys
of Kafka (`share.*`, `streams.*`, `consumer.assignment.interval.ms`) are refused with the reason.

"""

TOPIC_PAGE = """\
# Topic keys

Set a key when you create a topic, or later with `tidemill topic alter` or any Kafka admin client.
This page has every topic key of Kafka 4.3: it works, or it is stored without effect, or it is
refused, with the reason. Any other key is an error.

"""

WORKS = """\
## Keys that work

Where the last column names a broker key ([configuration.md](configuration.md)), that key sets the
default.

"""

STORED = """\
## Keys that are stored

These keys are kept and shown, so that tools that set them keep working, but they have no effect.

"""

REFUSED = """\
## Values that are refused

Accepting these values would promise something that does not happen.

"""


APIS = """\
# APIs and versions

The broker's answer to ApiVersions, generated from its list of handlers. Produce is advertised from
version 0, because old clients take that as a sign that the broker accepts compressed batches, but
it needs version 3.

"""

METRICS_PAGE = """\
# Metrics

`tidemill up --set metrics.listen=127.0.0.1:9100` serves `/metrics` in the text format of
Prometheus, `/healthz` (the process is alive) and `/readyz` (it serves clients).

"""


def pages() -> dict[Path, str]:
    """Every generated page, by path."""
    return {
        FOLDER / "configuration.md": _configuration_page(),
        FOLDER / "topic-keys.md": _topic_page(),
        FOLDER / "apis.md": _apis_page(),
        FOLDER / "metrics.md": _metrics_page(),
    }


def _configuration_page() -> str:
    rows = [
        (
            f"`{one.key}`",
            _value(one),
            _allowed(one),
            one.scope.value,
            "at run time" if one.dynamic else "at start",
            one.doc,
        )
        for one in options_of(BrokerConfig).values()
    ]
    columns = ("key", "default", "allowed", "scope", "changes", "meaning")
    return CONFIGURATION + _table(columns, rows) + GROUP_PART + _group_table()


def _group_table() -> str:
    rows = [
        (
            f"`{name}`",
            f"`{key.broker_key}`",
            f"`{key.minimum_key}` to `{key.maximum_key}`",
            key.option.doc,
        )
        for name, key in GROUP_KEYS.items()
    ]
    return _table(("key", "default", "allowed", "meaning"), rows)


def _apis_page() -> str:
    rows = [
        (
            str(int(one.api_key)),
            API_SPECS[one.api_key].name,
            f"{one.versions[0]}..{one.versions[1]}",
        )
        for one in sorted(HANDLERS, key=lambda one: one.api_key)
    ]
    return APIS + _table(("key", "API", "versions"), rows)


def _metrics_page() -> str:
    rows = [(f"`{one.name}`", one.kind, one.help) for one in METRICS]
    return METRICS_PAGE + _table(("metric", "kind", "meaning"), rows)


def _topic_page() -> str:
    keys = TOPIC_KEYS.values()
    works = [
        (*_topic_cells(key), f"`{key.broker_key}`" if key.broker_key else "")
        for key in keys
        if key.effect is Effect.WORKS
    ]
    stored = [(*_topic_cells(key), key.reason) for key in keys if key.effect is Effect.STORED]
    refused = [
        (f"`{key.name}={value}`", reason)
        for key in keys
        for value, reason in key.refused_values.items()
    ]
    head = ("key", "default", "allowed", "meaning")
    return (
        TOPIC_PAGE
        + WORKS
        + _table((*head, "broker key"), works)
        + "\n"
        + STORED
        + _table((*head, "why"), stored)
        + "\n"
        + REFUSED
        + _table(("setting", "why"), refused)
    )


def _topic_cells(key: TopicKey) -> tuple[str, str, str, str]:
    return f"`{key.name}`", _value(key.option), _allowed(key.option), key.option.doc


def _value(one: Option) -> str:
    if one.default == INT64_MAX:
        return "no limit"
    text = one.render(one.default)
    return f"`{text}`" if text else "(empty)"


def _allowed(one: Option) -> str:
    unit = f" ({one.unit})" if one.unit else ""
    text = one.allowed
    if one.type in {OptionType.INT, OptionType.LONG}:
        text = text.removeprefix("a whole number ")
    return text + unit


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with `--check` name those that are out of date."""
    made = pages()
    if list(arguments) == ["--check"]:
        stale = [
            path for path, text in made.items() if not path.exists() or path.read_text() != text
        ]
        for path in stale:
            print(f"docs/reference/{path.name} is out of date: run python tools/reference_docs.py")
        return 1 if stale else 0
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
