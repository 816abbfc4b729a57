"""Brokers and their store on one small disk, which a producer fills as far as they let it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from tests.e2e.commands import printed_by
from tests.support.clients import DEADLINE_S, Confluent, Message
from tests.support.storage_lab import SharedDisk, StorageHost, why_not_here
from tests.support.topics import create_replicated, wait_in_sync
from tests.support.waiting import wait_until
from tidemill.testing.broker_process import TIDEMILL
from tidemill.testing.cluster_process import ClusterProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DISK_BYTES = 256 << 20
BROKERS = {0, 1, 2}
REFUSED = confluent_kafka.KafkaError.KAFKA_STORAGE_ERROR
SIZES = (100_000, 4_000, 10)
RECORDS_PER_ROUND = 20
ROUNDS_MAX = 400


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StorageHost]:
    """A host with a small disk."""
    if reason := why_not_here():
        pytest.skip(reason)
    made = StorageHost(tmp_path / "host")
    try:
        made.attach(SharedDisk(tmp_path / "host", DISK_BYTES).image)
        yield made
    finally:
        made.remove()


@pytest.fixture
def cluster(host: StorageHost) -> Iterator[ClusterProcess]:
    """Three brokers and the store that they share, all on that disk."""
    made = ClusterProcess(host.mount / "data", command=(*host.prefix, *TIDEMILL)).start()
    try:
        yield made
    finally:
        made.stop()


def errors_of(bootstrap: str, topic: str, count: int = 1, size: int = SIZES[0]) -> set[int]:
    """How so many records are answered, by the leader alone."""
    options = {"bootstrap.servers": bootstrap, "acks": 1, "retries": 0}
    producer = confluent_kafka.Producer(options)
    found: set[int] = set()

    def settle(error: confluent_kafka.KafkaError | None, _sent: confluent_kafka.Message) -> None:
        found.add(error.code() if error else 0)

    for _ in range(count):
        producer.produce(topic, b"x" * size, on_delivery=settle)
    assert producer.flush(DEADLINE_S) == 0
    return found


def fill(bootstrap: str, topic: str) -> None:
    """Produce until not even the smallest record is accepted."""
    for size in SIZES:
        for _ in range(ROUNDS_MAX):
            if errors_of(bootstrap, topic, RECORDS_PER_ROUND, size) == {REFUSED}:
                break
        else:
            raise AssertionError(f"records of {size} bytes were never refused")


def commit(bootstrap: str, topic: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "workers"})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def test_R12_a_topic_that_filled_the_disk_of_brokers_and_store_is_deleted_and_makes_room(cluster):
    bootstrap = cluster.bootstrap
    for name in ("big", "small"):
        create_replicated(bootstrap, name)
    Confluent().produce(bootstrap, "small", [Message(b"before")])
    commit(bootstrap, "small", 0)
    fill(bootstrap, "big")
    # Its leader shares the disk, and looks at it once a second.
    wait_until(lambda: errors_of(bootstrap, "small") == {REFUSED}, "records are still accepted")
    wait_in_sync(bootstrap, "big", BROKERS)
    commit(bootstrap, "small", 1)
    create_replicated(bootstrap, "late")
    printed_by(bootstrap, "topic", "delete", "big")
    wait_until(lambda: errors_of(bootstrap, "small") == {0}, "records are still refused")
    wait_in_sync(bootstrap, "small", BROKERS)
    assert "No space left for records" in cluster.log()
    assert cluster.stop() == 0
