"""Disks that return wrong bytes under real brokers: clients get every record, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.load import Load, read_logs
from tests.support.clients import DEADLINE_S
from tests.support.waiting import wait_for_brokers, wait_until
from tidemill.testing.cluster_process import ClusterProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEGMENT_BYTES = 2_048
RECORDS = 3_000


def create(cluster: ClusterProcess, topic: str) -> None:
    wait_for_brokers(cluster.bootstrap, {0, 1, 2})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(topic, 1, 3, config={"segment.bytes": str(SEGMENT_BYTES)})
    (made,) = admin.create_topics([new]).values()
    made.result(DEADLINE_S)


def leader_of(cluster: ClusterProcess, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found: list[int] = []

    def is_led_by_one_in_sync_with_all() -> bool:
        state = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions[0]
        found[:] = [state.leader]
        return state.leader >= 0 and len(state.isrs) == len(state.replicas)

    wait_until(is_led_by_one_in_sync_with_all, f"the replicas of {topic} do not get in sync")
    return found[0]


def segments(data: Path, topic: str, broker_id: int) -> list[Path]:
    directory = data if broker_id == 0 else data / f"broker-{broker_id}"
    return sorted((directory / "logs" / f"{topic}-0").glob("*.log"))


def damage(segment: Path) -> None:
    """Change a byte in the middle, on the disk and not in memory: the next read must look there."""
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))
        file.flush()
        os.fsync(file.fileno())


def forget_pages(data: Path) -> None:
    for path in data.rglob("*.log"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    made = ClusterProcess(tmp_path / "data")
    yield made.start()
    made.stop()


def test_I17_damaged_segments_of_all_replicas_are_mended_while_clients_read(
    tmp_path, cluster, topic
):
    data = tmp_path / "data"
    create(cluster, topic)
    load = Load(cluster.bootstrap, [(topic, 0)], seed=1).start()
    load.wait_acknowledged(RECORDS)
    load.finish()
    assert load.failures == []
    leader_of(cluster, topic)
    cluster.stop()
    for broker_id in range(3):
        damage(segments(data, topic, broker_id)[broker_id + 1])
    forget_pages(data)

    cluster.start()
    wait_for_brokers(cluster.bootstrap, {0, 1, 2})
    first = leader_of(cluster, topic)
    check_reads(cluster, topic, load)
    cluster.wait_log(rf"^\[broker {first}\] .*were damaged, and are again what broker \d had")
    cluster.kill_broker(first)
    cluster.wait_log(rf"^\[supervisor\] broker {first} is ready again")
    assert leader_of(cluster, topic) != first
    check_reads(cluster, topic, load)


def check_reads(cluster: ClusterProcess, topic: str, load: Load) -> None:
    """With a client that does not check checksums itself (librdkafka's default)."""
    read = read_logs(cluster.bootstrap, [(topic, 0)])[(topic, 0)]
    assert {one.offset: one.value for one in load.acknowledged} == dict(enumerate(read))
