"""How stock clients read: at their own pace, waiting, in small parts, again, from any offset."""

from __future__ import annotations

import json
from time import monotonic

import confluent_kafka
import pytest

from tests.support.clients import (
    CLIENTS,
    DEADLINE_S,
    Confluent,
    KafkaPython,
    Message,
    Sending,
    kafka,
)
from tests.support.topics import create_topic
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

NOVEMBER_2023_MS = 1_700_000_000_000
PARKED_MS = 4 * int(DEADLINE_S) * 1000
"""Longer than any test: an answer means that there was data, not that the wait ended."""


class _CountedFetches:
    """A consumer of partition 0 that counts the fetches it has sent."""

    def __init__(self, broker: BrokerProcess, topic: str, **options: int) -> None:
        self.sent = 0
        self._seen = 0
        self.consumer = Confluent().consumer(
            broker.bootstrap,
            fetch_wait_max_ms=PARKED_MS,
            socket_timeout_ms=2 * PARKED_MS,
            statistics_interval_ms=10,
            stats_cb=self._count,
            **options,
        )
        self.consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

    def _count(self, statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        self.sent = sum(broker["req"].get("Fetch", 0) for broker in brokers)
        self._seen += 1

    def wait_statistics(self, count: int) -> None:
        """Wait until the client has reported statistics `count` times; no record may arrive."""
        target, deadline = self._seen + count, monotonic() + DEADLINE_S
        while self._seen < target and monotonic() < deadline:
            assert self.consumer.poll(0.01) is None
        assert self._seen >= target

    def wait_parked(self) -> None:
        """Wait until the first fetch is parked at the broker."""
        while self.sent == 0:
            self.wait_statistics(1)
        assert self.sent == 1

    def close(self) -> None:
        self.consumer.close()


def test_F49_a_fetch_waits_for_data_and_is_answered_when_data_arrives(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    fetches = _CountedFetches(shared_broker, topic)
    try:
        fetches.wait_parked()
        Confluent().produce(shared_broker.bootstrap, topic, [Message(b"at last")])
        (record,) = Confluent().read(fetches.consumer, 1)
    finally:
        fetches.close()
    assert record.value == b"at last"


def test_F49_a_fetch_may_wait_for_a_minimum_of_bytes(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    fetches = _CountedFetches(shared_broker, topic, fetch_min_bytes=50_000)
    try:
        fetches.wait_parked()
        Confluent().produce(shared_broker.bootstrap, topic, [Message(b"too little")])
        assert fetches.consumer.poll(0.3) is None
        Confluent().produce(shared_broker.bootstrap, topic, [Message(b"x" * 60_000)])
        first, second = Confluent().read(fetches.consumer, 2)
    finally:
        fetches.close()
    assert (first.value, len(second.value)) == (b"too little", 60_000)


def test_F47_a_consumer_that_does_not_poll_gets_nothing(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    messages = [Message(b"%01000d" % n) for n in range(1000)]
    Confluent().produce(shared_broker.bootstrap, topic, messages, Sending(batch_bytes_max=2000))
    fetches = _CountedFetches(
        shared_broker,
        topic,
        max_partition_fetch_bytes=10_000,
        queued_min_messages=1,
        fetch_queue_backoff_ms=1,
    )
    partition = confluent_kafka.TopicPartition(topic, 0)
    try:
        Confluent().read(fetches.consumer, 1)
        fetches.consumer.pause([partition])
        fetches.wait_statistics(5)
        sent = fetches.sent
        fetches.wait_statistics(20)
        sent_while_paused = fetches.sent - sent
        fetches.consumer.resume([partition])
        rest = Confluent().read(fetches.consumer, 999)
    finally:
        fetches.close()
    assert sent_while_paused == 0
    assert [record.offset for record in rest] == list(range(1, 1000))


def test_F50_T31_a_fetch_returns_no_more_than_its_limit(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    messages = [Message(bytes(900)) for _ in range(50)]
    KafkaPython().produce(shared_broker.bootstrap, topic, messages, Sending(batch_bytes_max=1000))

    largest = _largest_fetch(shared_broker, topic, count=50, max_partition_fetch_bytes=5000)

    assert 2000 < largest <= 5000


def test_F50_T31_a_batch_above_every_limit_is_still_returned(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    messages = [Message(bytes(50_000)), Message(bytes(200_000))]
    KafkaPython().produce(shared_broker.bootstrap, topic, messages, Sending(batch_bytes_max=1000))

    largest = _largest_fetch(
        shared_broker, topic, count=2, max_partition_fetch_bytes=1, fetch_max_bytes=1
    )

    assert largest > 50_000


def _largest_fetch(broker: BrokerProcess, topic: str, *, count: int, **limits: int) -> float:
    """Read everything under these limits; the size in bytes of the largest answer."""
    consumer = KafkaPython().consumer(broker.bootstrap, **limits)
    partition = kafka.TopicPartition(topic, 0)
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        records = KafkaPython().read(consumer, count)
        assert [record.offset for record in records] == list(range(count))
        return float(consumer.metrics()["consumer-fetch-manager-metrics"]["fetch-size-max"])
    finally:
        consumer.close()


def test_F10_the_same_records_can_be_read_again_by_everyone(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    Confluent().produce(shared_broker.bootstrap, topic, [Message(b"%d" % n) for n in range(100)])

    readings = [
        reader.consume(shared_broker.bootstrap, topic, 100) for reader in (*CLIENTS, *CLIENTS)
    ]

    assert all(reading == readings[0] for reading in readings)


def test_F04_F52_reading_begins_at_any_offset_even_inside_a_batch(shared_broker, topic, client):
    create_topic(shared_broker.bootstrap, topic)
    client.produce(
        shared_broker.bootstrap,
        topic,
        [Message(b"%d" % n) for n in range(100)],
        Sending(codec="gzip"),
    )

    for start in (0, 1, 57, 99):
        records = client.consume(shared_broker.bootstrap, topic, 100 - start, {0: start})
        assert [r.value for r in records] == [b"%d" % n for n in range(start, 100)]


def test_F52_a_running_consumer_can_be_rewound(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    Confluent().produce(shared_broker.bootstrap, topic, [Message(b"%d" % n) for n in range(100)])
    consumer = Confluent().consumer(shared_broker.bootstrap)
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        Confluent().read(consumer, 100)
        consumer.seek(confluent_kafka.TopicPartition(topic, 0, 42))
        again = Confluent().read(consumer, 58)
    finally:
        consumer.close()
    assert [record.offset for record in again] == list(range(42, 100))


@pytest.mark.parametrize("brokers_version", [(0, 11), (1, 0), (2, 0)], ids=str)
def test_T23_a_client_that_fetches_by_old_versions_reads_zstd(
    shared_broker, topic, brokers_version
):
    """kafka-python fetches by versions below 10 from brokers that it takes for these."""
    create_topic(shared_broker.bootstrap, topic)
    values = [b"%d" % n for n in range(100)]
    Confluent().produce(
        shared_broker.bootstrap, topic, [Message(value) for value in values], Sending(codec="zstd")
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer = KafkaPython().consumer(shared_broker.bootstrap, api_version=brokers_version)
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        read = KafkaPython().read(consumer, len(values))
    finally:
        consumer.close()
    assert [record.value for record in read] == values


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_F53_T39_a_time_is_found_inside_a_batch(shared_broker, topic, client, codec):
    create_topic(shared_broker.bootstrap, topic)
    start_ms = NOVEMBER_2023_MS
    # Two batches with a record every ten milliseconds; the times in the first are out of order.
    shuffled = [start_ms + 10 * n for n in (0, 1, 5, 3, 4, 2)]
    rising = [start_ms + 1000 + 10 * n for n in range(100)]
    for times in (shuffled, rising):
        messages = [Message(b"%d" % time, timestamp_ms=time) for time in times]
        client.produce(shared_broker.bootstrap, topic, messages, Sending(codec=codec))

    asked = {
        0: 0,
        start_ms + 11: 2,
        start_ms + 51: 6,
        start_ms + 1000: 6,
        start_ms + 1000 + 541: 6 + 55,
        start_ms + 1000 + 990: 6 + 99,
        start_ms + 1000 + 991: None,
    }
    found = client.offsets_for_times(shared_broker.bootstrap, topic, list(asked))
    assert found == list(asked.values())


def test_T32_an_offset_beyond_the_end_is_out_of_range(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    Confluent().produce(shared_broker.bootstrap, topic, [Message(b"only")])

    with pytest.raises(confluent_kafka.KafkaException) as raised:
        Confluent().consume(shared_broker.bootstrap, topic, 1, {0: 2})

    assert raised.value.args[0].code() in (
        confluent_kafka.KafkaError._AUTO_OFFSET_RESET,
        confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE,
    )


def test_I6_I8_what_was_acknowledged_is_at_the_end_and_visible_to_everyone_at_once(
    shared_broker, topic, client
):
    create_topic(shared_broker.bootstrap, topic)
    for n in range(3):
        places = client.produce(shared_broker.bootstrap, topic, [Message(b"%d" % n)])
        assert places == [(0, n)]
        for reader in CLIENTS:
            (record,) = reader.consume(shared_broker.bootstrap, topic, 1, {0: n})
            assert (record.offset, record.value) == (n, b"%d" % n)
