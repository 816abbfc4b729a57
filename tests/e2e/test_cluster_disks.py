"""Disks that get full or fail below real brokers, under producers and groups."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from tests.e2e.cluster_stores import BROKERS, SeveralHosts
from tests.e2e.cluster_work import Work
from tests.support.clients import Confluent, Message
from tests.support.sick_disk import SickDisk
from tests.support.storage_lab import SharedDisk, StorageHost, why_not_here
from tests.support.topics import partitions_of, wait_in_sync
from tests.support.waiting import wait_until
from tidemill.testing.broker_process import TIDEMILL
from tidemill.testing.zookeeper_process import ZookeeperProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DISK_BYTES = 128 << 20
SICK = 1
OFFLINE = "the data directory is offline"
FULL = "No space left"
REFUSED = confluent_kafka.KafkaError.KAFKA_STORAGE_ERROR
BLOCKS_BYTES = 64 << 10
"""More than fits into what is left of the last block of a file."""


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[StorageHost]]:
    """A small disk for each broker."""
    if reason := why_not_here():
        pytest.skip(reason)
    with ExitStack() as stack:
        made = []
        for number in range(BROKERS):
            host = StorageHost(tmp_path / f"host-{number}")
            stack.callback(host.remove)
            host.attach(SharedDisk(tmp_path / f"host-{number}", DISK_BYTES).image)
            made.append(host)
        yield made


@pytest.fixture
def disk_hosts(
    tmp_path: Path, zookeeper: ZookeeperProcess, disks: list[StorageHost]
) -> Iterator[SeveralHosts]:
    """Each on its own disk."""
    made = SeveralHosts(
        tmp_path,
        zookeeper.address,
        commands={number: (*host.prefix, *TIDEMILL) for number, host in enumerate(disks)},
        directories=[host.mount / "data" for host in disks],
    )
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def sick_disk(tmp_path: Path) -> SickDisk:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    return SickDisk(tmp_path)


@contextmanager
def full(
    hosts: SeveralHosts, disks: list[StorageHost], topic: str, *broker_ids: int
) -> Iterator[None]:
    """Each of these brokers refuses what it cannot store; afterwards there is room again."""
    for broker_id in broker_ids:
        disks[broker_id].fill_disk()
    found = partitions_of(hosts.bootstrap, topic)
    led = {index: one.leader for index, one in found.items() if one.leader in broker_ids}
    assert set(led.values()) == set(broker_ids)
    assert errors_of(hosts.bootstrap, topic, led) == dict.fromkeys(led, REFUSED)
    for broker_id in broker_ids:
        assert FULL in hosts.brokers[broker_id].log_path.read_text()
    yield
    for broker_id in broker_ids:
        disks[broker_id].free_disk()


def errors_of(bootstrap: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """What a record is answered with that needs new blocks, and no follower to be acknowledged."""
    options = {"bootstrap.servers": bootstrap, "acks": 1, "retries": 0}
    producer = confluent_kafka.Producer(options)
    errors: dict[int, int] = {}

    def settle(error: confluent_kafka.KafkaError | None, sent: confluent_kafka.Message) -> None:
        errors[sent.partition()] = error.code() if error else 0

    for partition in partitions:
        producer.produce(topic, b"x" * BLOCKS_BYTES, partition=partition, on_delivery=settle)
    producer.flush()
    return errors


def test_R12_I1_I28_disks_that_are_full_and_freed_again_lose_nothing(disk_hosts, disks, topic):
    with Work(disk_hosts.bootstrap, topic) as work:
        one = partitions_of(disk_hosts.bootstrap, topic)[0].leader
        with full(disk_hosts, disks, topic, one):
            for index, partition in partitions_of(disk_hosts.bootstrap, topic).items():
                if partition.leader != one:  # goes on without it
                    Confluent().produce(
                        disk_hosts.bootstrap, topic, [Message(b"x", partition=index)]
                    )
        work.goes_on()
        wait_in_sync(disk_hosts.bootstrap, topic, set(range(BROKERS)))
        with full(disk_hosts, disks, topic, *range(BROKERS)):
            pass
        work.goes_on()
        wait_in_sync(disk_hosts.bootstrap, topic, set(range(BROKERS)))
        work.check()
    assert [broker.stop() for broker in disk_hosts.brokers] == [
        0
    ] * BROKERS  # none has ended before


def test_R12_I1_I28_a_broker_whose_syncs_fail_hands_over_and_returns_with_a_good_disk(
    tmp_path, zookeeper, sick_disk, topic
):
    hosts = SeveralHosts(tmp_path, zookeeper.address, commands={SICK: sick_disk.command})
    try:
        with Work(hosts.start().bootstrap, topic) as work:
            sick_disk.fail()
            log = hosts.brokers[SICK].log_path
            wait_until(lambda: OFFLINE in log.read_text(), "it does not notice")
            others = set(range(BROKERS)) - {SICK}
            wait_in_sync(hosts.without(SICK), topic, others)
            found = partitions_of(hosts.without(SICK), topic)
            assert {one.leader for one in found.values()} <= others
            work.goes_on()
            hosts.kill(SICK)
            sick_disk.mend()
            hosts.bring_back(SICK)
            wait_in_sync(hosts.bootstrap, topic, set(range(BROKERS)))
            work.goes_on()
            work.check()
    finally:
        hosts.stop()
