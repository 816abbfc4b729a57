"""A partition over a log in memory, and the images that give it its role."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.owner_lease import ALWAYS, OwnerLease
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.leader_log import ACKS_ALL, Appended
from tidemill.replication.partition import Partition
from tidemill.replication.partition_settings import PartitionSettings
from tidemill.replication.refused_batches import RefusedTotal
from tidemill.storage.files.disk import Buffer
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.storage.log.interface import LogConfig, PartitionLog
from tidemill.storage.log.memory_log import MemoryPartitionLog
from tidemill.wire.produced_batch import BatchPolicy
from tidemill.wire.records import Record, build_batch

NAME = TopicPartition("t", 0)
TOPIC_ID = TopicId(UUID(int=7))
OWN, SECOND, THIRD = 1, 2, 3
ALL = (OWN, SECOND, THIRD)
NOW_MS = 1_700_000_000_000


class Flushes:
    """Counts appended bytes and requested flushes; never flushes anything."""

    def __init__(self) -> None:
        self.requested = 0
        self.appended_bytes = 0

    def appended(self, log: PartitionLog, size_bytes: int, *, ack_waits: bool) -> None:
        self.appended_bytes += size_bytes
        self.requested += ack_waits

    def request(self, log: PartitionLog) -> None:
        self.requested += 1


class SlowLog:
    """A log in memory whose flushes a test ends by hand."""

    def __init__(self) -> None:
        self._log = MemoryPartitionLog(LogConfig())
        self.flushed_offset = 0

    def flush(self, offset: int | None = None) -> None:
        self.flushed_offset = self._log.log_end_offset if offset is None else offset

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)


class Watcher:
    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1


class Watch:
    """What a follower has to be told of a partition, as the partition says it."""

    def __init__(self, vouched_until: float = -1.0) -> None:
        self.heard: list[str] = []
        self.vouched_until = vouched_until

    def grew(self) -> None:
        self.heard.append("grew")

    def mark_moved(self) -> None:
        self.heard.append("mark moved")

    def role_changed(self) -> None:
        self.heard.append("role changed")

    def detach(self) -> None:
        self.heard.append("detached")


def image(
    *,
    leader: int = OWN,
    epoch: int = 0,
    isr: tuple[int, ...] = (OWN,),
    replicas: tuple[int, ...] | None = None,
    version: int = 0,
) -> PartitionImage:
    """`version` is the partition epoch."""
    return PartitionImage(
        leader=leader,
        leader_epoch=epoch,
        replicas=replicas or (OWN, SECOND, THIRD),
        isr=isr,
        partition_epoch=version,
    )


def settings(**options: object) -> PartitionSettings:
    return PartitionSettings(policy=BatchPolicy(), **options)  # type: ignore[arg-type]


def partition(
    log: object | None = None,
    *,
    flushes: Flushes | None = None,
    high_watermark: int = 0,
    lease: OwnerLease = ALWAYS,
    boottime: Callable[[], float] | None = None,
    hold_host: HoldHost | None = None,
    room: DiskRoom | None = None,
    refused_total: RefusedTotal | None = None,
    name: TopicPartition = NAME,
    **options: object,
) -> Partition:
    """A partition without a role."""
    return Partition(
        name,
        TOPIC_ID,
        log or MemoryPartitionLog(LogConfig()),  # type: ignore[arg-type]
        broker_id=OWN,
        settings=settings(**options),
        flushes=flushes or Flushes(),
        high_watermark=high_watermark,
        lease=lease,
        boottime=boottime,
        hold_host=hold_host,
        room=room,
        refused_total=refused_total,
    )


def leader(
    log: object | None = None, *, isr: tuple[int, ...] = (OWN,), epoch: int = 0, **options: object
) -> Partition:
    """A partition that leads three replicas."""
    made = partition(log, **options)  # type: ignore[arg-type]
    made.become_leader(image(isr=isr, epoch=epoch), now=0.0)
    return made


def batch(count: int = 1, *, base_offset: int = 0, epoch: int = 0, **options: object) -> bytes:
    records = [Record(b"value", timestamp=NOW_MS) for _ in range(count)]
    made = build_batch(records, base_offset=base_offset, leader_epoch=epoch, **options)  # type: ignore[arg-type]
    return bytes(made)


def append(to: Partition, count: int = 1, *, acks: int = ACKS_ALL, **options: object) -> Appended:
    return to.as_leader.append(
        memoryview(bytearray(batch(count, **options))), acks=acks, now_ms=NOW_MS
    )


def fetched(
    by: int, of: Partition, offset: int, *, flushed: int | None = None, now: float = 1.0
) -> None:
    """A follower fetches at `offset`; by default it has flushed everything before that."""
    of.follower_fetched(
        by, fetch_offset=offset, flushed_offset=offset if flushed is None else flushed, now=now
    )


class Lease:
    """A lease that a test takes away and gives back."""

    def __init__(self) -> None:
        self.may_act = self.is_let_in = True


def wait(for_: Partition, next_offset: int) -> list[ErrorCode]:
    """The codes that settle an acks=all request; empty while it waits."""
    heard: list[ErrorCode] = []
    for_.as_leader.wait_acknowledged(next_offset, heard.append)
    return heard


def copy(source: Partition, target: Partition, *, high_watermark: int = 0) -> None:
    """What one fetch of a follower does, without the network."""
    found = source.read(
        target.log.log_end_offset,
        max_bytes=1 << 20,
        end_offset=source.log.log_end_offset,
        at_least_one=True,
    )
    data: Buffer = b"".join(bytes(chunk) for chunk in found.chunks)
    target.as_follower.append(data, high_watermark=high_watermark, now_ms=NOW_MS)


def content(of: Partition) -> bytes:
    """All bytes of a partition's log."""
    found = of.log.read(
        of.log.log_start_offset, max_bytes=1 << 30, end_offset=of.log.log_end_offset
    )
    return b"".join(bytes(chunk) for chunk in found.chunks)


def refusal(of: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return of.value.code
