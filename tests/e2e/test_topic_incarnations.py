"""A topic that is deleted and made again, over and over, while producers and groups work."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import suppress
from typing import Any, final

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.support.clients import DEADLINE_S, Confluent
from tests.support.topics import create_replicated
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

INCARNATIONS = 10
PARTITIONS = 3
ACKNOWLEDGED = 100
"""Before a topic is deleted."""
UNACKNOWLEDGED_MAX = 100


@final
class Writer:
    """Sends to one incarnation of a topic, also while it is deleted: `7:42`."""

    def __init__(self, bootstrap: str, topic: str, incarnation: int) -> None:
        self.acknowledged: set[bytes] = set()
        self._topic = topic
        self._incarnation = incarnation
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 2,
                "batch.num.messages": 20,
                "topic.metadata.propagation.max.ms": 100,
                "message.timeout.ms": 2000,
            }
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._stopping.is_set():
            if len(self._producer) < UNACKNOWLEDGED_MAX:
                value = b"%d:%d" % (self._incarnation, count)
                with suppress(confluent_kafka.KafkaException):  # there is no such topic any more
                    self._producer.produce(
                        self._topic, value, partition=count % PARTITIONS, on_delivery=self._settle
                    )
                count += 1
            self._producer.poll(0.001)
        self._producer.flush(DEADLINE_S)

    def _settle(self, error: confluent_kafka.KafkaError | None, sent: Any) -> None:
        if error is None:
            self.acknowledged.add(sent.value())

    def stop(self) -> None:
        """Every record has an outcome: nothing of it is on its way."""
        self._stopping.set()
        self._thread.join(2 * DEADLINE_S)
        assert not self._thread.is_alive(), "records are still not settled"


@final
class Reader:
    """Reads all incarnations of a topic, one after the other, with one consumer."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.seen: dict[int, list[int]] = defaultdict(list)
        """The incarnations of each partition's records."""
        options = {"auto_offset_reset": "earliest", "topic_metadata_refresh_interval_ms": 100}
        self._consumer = Confluent().consumer(bootstrap, **options)
        self._consumer.subscribe([topic])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(100, 0.05):
                if message.error() is None:
                    self.seen[message.partition()].append(_incarnation(message.value()))
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "it does not end"


def _incarnation(value: bytes) -> int:
    return int(value.partition(b":")[0])


def read_until(bootstrap: str, topic: str, wanted: set[bytes]) -> set[bytes]:
    """All records from the beginning on, until these were among them."""
    consumer = Confluent().consumer(bootstrap)
    places = [confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
    read: set[bytes] = set()

    def has_all() -> bool:
        read.update(one.value() for one in consumer.consume(1000, 0.05) if one.error() is None)
        return wanted <= read

    try:
        consumer.assign(places)
        wait_until(has_all, "acknowledged records are missing")
    finally:
        consumer.close()
    return read


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_topics([topic]).values()
    deleted.result(DEADLINE_S)


def write_and_delete(bootstrap: str, topic: str, incarnation: int) -> None:
    """What is acknowledged can be read, and nothing else; then it is deleted, under load."""
    writer = Writer(bootstrap, topic, incarnation)
    try:
        wait_until(lambda: len(writer.acknowledged) >= ACKNOWLEDGED, "too few are acknowledged")
        read = read_until(bootstrap, topic, set(writer.acknowledged))
        assert {_incarnation(value) for value in read} == {incarnation}
        delete(bootstrap, topic)
    finally:
        writer.stop()


def test_I34_no_record_of_a_deleted_topic_appears_in_the_next_one_of_its_name(store, work, topic):
    again = f"{topic}-again"
    reader = Reader(store.bootstrap, again)
    try:
        for incarnation in range(INCARNATIONS):
            create_replicated(store.bootstrap, again, partitions=PARTITIONS)
            write_and_delete(store.bootstrap, again, incarnation)
    finally:
        reader.stop()
    assert reader.seen
    for incarnations in reader.seen.values():
        assert incarnations == sorted(incarnations)
    work.goes_on()
    work.check()
