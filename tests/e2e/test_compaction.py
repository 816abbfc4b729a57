"""Compacted topics with stock clients: newest values, deletes, refusals, and kill -9."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import confluent_kafka
import pytest

from tests.support.clients import DEADLINE_S, Confluent, Message, Sending
from tests.support.topics import create_topic, end_offset
from tests.support.waiting import wait_until
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

SETTINGS = ("log.cleaner.backoff.ms=50",)
KEYS = 40

COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": "2048",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": "0",
}


def _send(broker: BrokerProcess, topic: str, messages: list[Message], codec: str = "none") -> None:
    Confluent().produce(
        broker.bootstrap, topic, messages, Sending(batch_bytes_max=500, codec=codec)
    )


def _version(number: int) -> list[Message]:
    return [Message(b"%d" % number, b"key-%d" % key) for key in range(KEYS)]


def _push(broker: BrokerProcess, topic: str) -> None:
    """Only closed segments are compacted: fill the last one with another key."""
    _send(broker, topic, [Message(b"x" * 300, b"filler") for _ in range(20)])


def _read_all(broker: BrokerProcess, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Every record up to the end; the client reports the end."""
    consumer = Confluent().consumer(broker.bootstrap, enable_partition_eof=True)
    found: list[tuple[bytes | None, bytes | None]] = []
    deadline = monotonic() + DEADLINE_S
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        while monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            if message.key() != b"filler":
                found.append((message.key(), message.value()))
    finally:
        consumer.close()
    raise AssertionError(f"the end of {topic} was not reached")


def _newest(broker: BrokerProcess, topic: str, number: int) -> Callable[[], bool]:
    expected = [(b"key-%d" % key, b"%d" % number) for key in range(KEYS)]
    return lambda: _read_all(broker, topic) == expected


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_F26_only_the_newest_value_of_each_key_is_left(new_broker, topic, codec):
    broker = new_broker(*SETTINGS)
    create_topic(broker.bootstrap, topic, **COMPACTED)
    for number in range(3):
        _send(broker, topic, _version(number), codec)
    _push(broker, topic)
    end = end_offset(broker.bootstrap, topic)

    wait_until(_newest(broker, topic, 2), "older values are still there")

    assert end_offset(broker.bootstrap, topic) == end


def test_F26_a_deleted_key_is_gone_after_its_retention(new_broker, topic):
    broker = new_broker(*SETTINGS)
    create_topic(broker.bootstrap, topic, **COMPACTED)
    _send(broker, topic, _version(0))
    _send(broker, topic, [Message(None, b"key-%d" % key) for key in range(KEYS)])

    def is_empty() -> bool:
        _push(broker, topic)
        return _read_all(broker, topic) == []

    wait_until(is_empty, "the tombstones are still there")


def test_F26_kill_9_while_compacting_loses_no_newest_value(new_broker, topic):
    broker = new_broker(*SETTINGS)
    create_topic(broker.bootstrap, topic, **COMPACTED)
    for number in range(8):
        _send(broker, topic, _version(number))
        _push(broker, topic)
        broker.kill()
        broker.start()
        newest = dict(_read_all(broker, topic))
        assert newest == {b"key-%d" % key: b"%d" % number for key in range(KEYS)}
    _push(broker, topic)

    wait_until(_newest(broker, topic, 7), "older values are still there")


def test_T25_a_record_without_key_is_refused(new_broker, topic):
    broker = new_broker(*SETTINGS)
    create_topic(broker.bootstrap, topic, **COMPACTED)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        _send(broker, topic, [Message(b"value")])
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_RECORD
    assert _read_all(broker, topic) == []
