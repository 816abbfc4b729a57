"""A data directory on a simulated disk, for tests of everything around the logs."""

from __future__ import annotations

from uuid import UUID

from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.state.producer_bound import ProducerLimits
from tidemill.testing.sim.disk import SimDisk

ROOT = "/data"
ORDERS = TopicPartition("orders", 0)
ORDERS_PATH = f"{ROOT}/{ORDERS}"
TOPIC_ID = TopicId(UUID(int=7))
SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100, delete_delay_ms=0)


def opened(
    disk: SimDisk,
    *,
    cluster_id: str = "c",
    broker_id: int = 1,
    now_ms: int = 1_000,
    producers: ProducerLimits | None = None,
    seed: int = 3,
) -> LogDirectory:
    return LogDirectory.open(
        disk,
        ROOT,
        cluster_id=cluster_id,
        broker_id=broker_id,
        rng=SeededRng(seed),
        now_ms=now_ms,
        config_of=lambda _partition: SMALL,
        producers=producers or ProducerLimits(),
    )


def log_of(directory: LogDirectory, partition: TopicPartition = ORDERS) -> FilePartitionLog:
    log = directory.get(partition)
    assert log is not None
    return log


def flushed(directory: LogDirectory, *partitions: TopicPartition) -> None:
    """A flush round for these logs, or for the default log."""
    for partition in partitions or (ORDERS,):
        directory.dirty.request(log_of(directory, partition))
    flush_round = directory.dirty.collect(now_ms=0)
    if flush_round is not None:
        flush_round.sync()
        flush_round.apply()


def stored(directory: LogDirectory) -> None:
    """A checkpoint round: what makes the next start short is on disk."""
    flush_round = directory.collect_checkpoint(directory.changed_logs(), 100)
    if flush_round is not None:
        flush_round.sync()
        flush_round.apply()
