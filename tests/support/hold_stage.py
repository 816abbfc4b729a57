"""Replicas of one partition with held records, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.support.partitions import OWN, SECOND, THIRD, copy, image, partition
from tidemill.core.loop.timers import LoopTimers
from tidemill.core.telemetry import Telemetry
from tidemill.delivery.matchless import MatchlessRanges
from tidemill.delivery.view_walk import ViewWalk
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.holding.partition_holds import PartitionHolds
from tidemill.replication.holding.releaser import Releaser
from tidemill.replication.leader_log import ACKS_ALL, Appended
from tidemill.replication.partition import Partition
from tidemill.storage.files.disk import Disk
from tidemill.testing.manual_clock import ManualClock
from tidemill.wire.batch import iter_headers, read_header
from tidemill.wire.records import Header, Record, build_batch, iter_records

ALL = (OWN, SECOND, THIRD)


def delay(ms: int) -> Header:
    return "tidemill.delay-ms", b"%d" % ms


def deliver_at(ms: int) -> Header:
    return "tidemill.deliver-at", b"%d" % ms


def message_id(name: bytes) -> Header:
    return "tidemill.message-id", name


def cancel(target: bytes) -> list[Header]:
    return [("tidemill.command", b"cancel"), ("tidemill.target", target)]


def move(target: bytes, to: Header) -> list[Header]:
    return [("tidemill.command", b"move"), ("tidemill.target", target), to]


class InlineDisk:
    """Runs in place what a thread would run; `before` happens first."""

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk
        self.before: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    async def run(self, work: Callable[[], Any], *_: object) -> Any:
        happens, self.before = self.before, lambda: None
        happens()
        return work()


class Replica:
    """One broker's replica, with a releaser of its own."""

    def __init__(
        self,
        clock: ManualClock,
        log: object | None = None,
        *,
        disk: Disk | None = None,
        timers: object | None = None,
        **options: object,
    ) -> None:
        self.clock = clock
        self.host = HoldHost(clock)
        self.disk = InlineDisk(disk)
        self.telemetry = Telemetry()
        self.partition: Partition = partition(log, hold_host=self.host, **options)  # type: ignore[arg-type]
        self.releaser = Releaser(
            self.host,
            self.disk,  # type: ignore[arg-type]
            clock=clock,
            timers=timers or LoopTimers(clock),  # type: ignore[arg-type]
            telemetry=self.telemetry,
        )

    @property
    def holds(self) -> PartitionHolds:
        assert self.partition.holds is not None
        return self.partition.holds

    def lead(self, *, epoch: int = 0, isr: Sequence[int] = (OWN,)) -> Replica:
        self.partition.become_leader(image(epoch=epoch, isr=tuple(isr)), now=self.clock.monotonic())
        return self

    def follow(self, *, epoch: int) -> None:
        self.partition.become_follower(image(leader=SECOND, epoch=epoch))

    def send(
        self,
        *records: tuple[bytes, Sequence[Header]],
        acks: int = ACKS_ALL,
        timestamp: int | None = None,
        **options: object,
    ) -> Appended:
        """One batch of a client."""
        time = self.clock.wall_ms() if timestamp is None else timestamp
        made = build_batch(
            [Record(value, headers=headers, timestamp=time) for value, headers in records],
            **options,  # type: ignore[arg-type]
        )
        return self.partition.as_leader.append(
            memoryview(made), acks=acks, now_ms=self.clock.wall_ms()
        )

    async def work(self) -> None:
        """What the loops of the broker do once something woke them."""
        await self.releaser.write_wanted()
        await self.releaser.replay_wanted()
        for holds in list(self.host.partitions):
            self.host.look_at(holds)
        await self.releaser.release_due()

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.work()

    def copy_from(self, leader: Replica) -> None:
        while self.partition.log.log_end_offset < leader.partition.log.log_end_offset:
            copy(leader.partition, self.partition, high_watermark=leader.partition.high_watermark)

    # --- what consumers get ----------------------------------------------------------------------

    def seen(self, offset: int = 0) -> list[Record]:
        """The records that a consumer is shown from `offset` to the end of the log."""
        data = self.fetched(offset)
        return [
            record
            for position, header in iter_headers(data)
            if not header.is_control
            for record in iter_records(data[position:])
            if record.offset >= offset
        ]

    def fetched(self, offset: int = 0) -> memoryview:
        log = self.partition.log
        walk = ViewWalk(
            None,
            partition=0,
            fetch_offset=offset,
            start_offset=offset,
            leader_epoch=0,
            bytes_max=1 << 30,
            matchless=MatchlessRanges(),
        )
        found = log.read(offset, max_bytes=1 << 30, end_offset=log.log_end_offset)
        for _ in walk.steps(found.chunks):
            pass
        return memoryview(walk.answer())

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.seen()]

    def stored(self) -> list[Any]:
        """The headers of all batches, as stored."""
        log = self.partition.log
        found = log.read(log.log_start_offset, max_bytes=1 << 30, end_offset=log.log_end_offset)
        return [read_header(chunk) for chunk in found.chunks]
