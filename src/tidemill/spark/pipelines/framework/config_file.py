"""The TOML file that configures a pipeline; `init` writes one that explains every key.

    pipeline = "logs"
    input.topic = "web-logs"

A key may also be in a table (`[input]`, then `topic = ...`): TOML treats both as the same key.
Keys under `[spark]` go to Spark unchanged, keys under `[kafka]` to the client. An unknown key is
refused.
"""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from tidemill.core.config.keys import (
    Option,
    OptionType,
    build,
    nearest_key_hint,
    options_of,
)
from tidemill.core.errors import UserError
from tidemill.spark.pipelines.framework.kafka_options import (
    KAFKA_PREFIX,
    KafkaOptions,
    kafka_options,
)
from tidemill.spark.pipelines.framework.pipeline import Pipeline, PipelineKind
from tidemill.spark.pipelines.framework.run_settings import RunSettings

__all__ = [
    "ConfiguredPipeline",
    "beside_file",
    "configure",
    "key_rows",
    "parse_file",
    "template",
]

PIPELINE_KEY = "pipeline"
SPARK_PREFIX = "spark."
_WIDTH = 96
_PATH_KEYS: Final = frozenset({"checkpoint.dir", "database", "output.dir", "table.file"})
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][\w+.-]+:")
"""A path from the root, or an address of some storage."""


@final
@dataclass(frozen=True, slots=True)
class ConfiguredPipeline:
    """A pipeline that is ready to run."""

    kind: PipelineKind
    pipeline: Pipeline
    run: RunSettings
    spark: Mapping[str, str]
    kafka: KafkaOptions


def parse_file(text: str, *, source: str) -> dict[str, object]:
    """Values by dotted key. UserError if the text is not TOML."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source}: {error}") from None
    return dict(_flat(tables, ""))


def beside_file(
    kind: PipelineKind, values: Mapping[str, object], folder: Path
) -> dict[str, object]:
    """The values of a file in `folder`, whose relative paths are relative to it, defaults too.

    A pipeline then finds its checkpoint from wherever it is started.
    """
    found = dict(values)
    for made, _ in key_rows(kind):
        path = found.get(made.key, made.default)
        if made.key in _PATH_KEYS and isinstance(path, str) and not _ABSOLUTE.match(path):
            found[made.key] = str(folder / path)
    return found


def _flat(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ",".join(str(item) for item in value)
        else:
            yield f"{prefix}{key}", value


def configure(kind: PipelineKind, *layers: Mapping[str, object]) -> ConfiguredPipeline:
    """Check all values; a later layer overrides an earlier one. UserError names the wrong key."""
    values: dict[str, object] = {}
    for layer in layers:
        values.update(layer)
    _check_name(kind, values.pop(PIPELINE_KEY, kind.name))
    spark, kafka = (
        {key: _plain_text(value) for key, value in values.items() if key.startswith(prefix)}
        for prefix in (SPARK_PREFIX, KAFKA_PREFIX)
    )
    rest = {key: value for key, value in values.items() if key not in spark.keys() | kafka.keys()}
    run_keys = [made.key for made in options_of(RunSettings).values()]
    own_keys = [made.key for made in options_of(kind.settings_class).values()]
    for key in rest:
        if key not in run_keys and key not in own_keys:
            hint = nearest_key_hint(key, [*run_keys, *own_keys])
            raise UserError(f"pipeline {kind.name} has no key {key!a}{hint}")
    run = build(RunSettings, {key: value for key, value in rest.items() if key in run_keys})
    return ConfiguredPipeline(
        kind=kind,
        pipeline=kind.make({key: value for key, value in rest.items() if key in own_keys}),
        run=run,
        spark=spark,
        kafka=kafka_options(kafka, run.bootstrap),
    )


def _check_name(kind: PipelineKind, name: object) -> None:
    if name != kind.name:
        raise UserError(f"the file is for pipeline {name}, not for {kind.name}")


def _plain_text(value: object) -> str:
    """A value in the spelling of Spark's settings and Kafka's."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def key_rows(kind: PipelineKind) -> list[tuple[Option, bool]]:
    """The options of a pipeline, its own first. The flag is true for options that all share."""
    own = [(made, False) for made in options_of(kind.settings_class).values()]
    return own + [(made, True) for made in options_of(RunSettings).values()]


def template(kind: PipelineKind) -> str:
    """The file that `init` writes: every key with its meaning and default."""
    parts = [f"# {kind.description}\n#\n#     tidemill pipeline run FILE\n\n"]
    parts.append(f'{PIPELINE_KEY} = "{kind.name}"\n')
    shared_started = False
    for made, shared in key_rows(kind):
        if shared and not shared_started:
            parts.append("\n# --- for every pipeline " + "-" * 50 + "\n")
            shared_started = True
        parts.append(f"\n{_comment(made)}\n{made.key} = {_toml(made)}\n")
    parts.append(
        "\n# Settings of Spark itself, as Spark names them, for example:\n"
        '# spark.executor.memory = "2g"\n'
        "\n# Settings of the Kafka clients that read and write, for example:\n"
        '# kafka.compression.type = "zstd"\n'
    )
    return "".join(parts)


def _comment(made: Option) -> str:
    allowed = "" if made.type is OptionType.STRING and not made.choices else f" ({made.allowed})"
    lines = textwrap.wrap(made.doc + allowed, _WIDTH)
    return "\n".join(f"# {line}" for line in lines)


def _toml(made: Option) -> str:
    match made.default:
        case tuple() as items:
            return json.dumps(list(items))
        case bool() | str() as value:
            return json.dumps(value)
        case number:
            return str(number)
