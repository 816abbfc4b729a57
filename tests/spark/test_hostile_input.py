"""Whatever is in a topic: every record ends in a result or as a dead letter, and no batch fails."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from tests.spark.hostile_values import (
    compressible_messages,
    hostile_messages,
    large_messages,
)
from tests.spark.pipeline_runs import (
    enrich_values,
    headers_of,
    log_values,
    offsets_in,
    run_once,
)
from tests.support.clients import Confluent, Sending
from tests.support.spark_topics import create_topic, records_of

HOSTILE_COUNT = 3_000


@pytest.fixture(scope="module")
def hostile(running):
    """A topic with hostile records, and its messages by offset."""
    name = "hostile"
    create_topic(running.bootstrap, name)
    plain = hostile_messages(HOSTILE_COUNT, seed=11)
    large = large_messages(len(plain))
    packed = compressible_messages(len(plain) + len(large))
    client = Confluent()
    client.produce(running.bootstrap, name, plain)
    for message in large:
        client.produce(running.bootstrap, name, [message])
    client.produce(running.bootstrap, name, packed, Sending(codec="zstd"))
    return name, [*plain, *large, *packed]


def is_whole_object(value: bytes) -> bool:
    """Whether strict JSON finds one object and nothing else, every name once."""

    def unique(pairs):
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError(pairs)
        return dict(pairs)

    def refuse(word):
        raise ValueError(word)

    try:
        text = value.decode()
        found = json.loads(
            text, object_pairs_hook=unique, parse_constant=refuse, parse_int=str, parse_float=str
        )
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict)


def test_every_hostile_line_is_an_event_or_a_dead_letter_of_logs(spark, running, hostile, tmp_path):
    topic, messages = hostile
    run_once(spark, "logs", log_values(running.bootstrap, topic, tmp_path))

    events = [offset for _, offset in offsets_in(tmp_path / "out/events")]
    letters = {
        int(headers_of(record)["tidemill.dead.offset"]): record
        for record in records_of(running.bootstrap, f"{topic}.dead")
    }
    assert sorted([*events, *letters]) == list(range(len(messages)))
    assert len(events) > 500
    for offset, letter in letters.items():
        sent, facts = messages[offset], headers_of(letter)
        assert facts["tidemill.dead.reason"]
        assert letter.key == sent.key
        if "tidemill.dead.cut" in facts:
            assert len(letter.value) < len(sent.value) == int(facts["tidemill.dead.cut"])
        assert sent.value.startswith(letter.value)
    cut = [o for o, letter in letters.items() if "tidemill.dead.cut" in headers_of(letter)]
    assert sorted(cut) == list(range(HOSTILE_COUNT, len(messages)))
    assert "<svg" in (tmp_path / "out/report.html").read_text()


def test_every_hostile_record_is_enriched_byte_for_byte_or_a_dead_letter(
    spark, running, hostile, tmp_path
):
    topic, messages = hostile
    (tmp_path / "table.csv").write_text("id,name\n1,Ann\n007,Bond\n")
    values = enrich_values(running.bootstrap, topic, tmp_path) | {
        "input.key": "id",
        "dead.topic": f"{topic}.unknown",
    }

    run_once(spark, "enrich", values)

    out = {
        int(record.key): record.value for record in records_of(running.bootstrap, f"{topic}.out")
    }
    letters = Counter(
        int(headers_of(record)["tidemill.dead.offset"])
        for record in records_of(running.bootstrap, f"{topic}.unknown")
    )
    whole = {index for index, message in enumerate(messages) if is_whole_object(message.value)}
    too_large = {HOSTILE_COUNT}
    assert set(out) == whole - too_large
    assert letters == Counter(set(range(len(messages))) - set(out))
    for index, value in out.items():
        sent = messages[index].value
        if b"cust" not in sent:
            assert re.sub(rb',?"customer":(null|{[^}]*})', b"", value, count=1) == sent
