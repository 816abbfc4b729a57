"""A broker in miniature whose one log has held records, with all that works for them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeVar, final

from tidemill.core.ids import TopicPartition
from tidemill.core.telemetry import Telemetry
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.holding.hold_policy import HoldPolicy
from tidemill.replication.holding.hold_spills import HoldSpills
from tidemill.replication.holding.partition_holds import PartitionHolds
from tidemill.replication.holding.releaser import Releaser
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment_drop import SegmentDrop
from tidemill.testing.crash.crash_workloads import A
from tidemill.testing.crash.mini_broker import (
    SMALL,
    SMALL_JOURNAL,
    MiniBroker,
)
from tidemill.testing.crash.promises import Promises, SentBatch
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire import header_names as names
from tidemill.wire.batch import assign_offsets, read_header
from tidemill.wire.marks import veil
from tidemill.wire.produced_batch import BatchPolicy
from tidemill.wire.records import Header, Record, build_batch, iter_records

__all__ = [
    "DELAY_MS_MAX",
    "FAR_MS",
    "KEEP_BYTES",
    "HoldPromises",
    "Holding",
    "HoldingBroker",
    "JournaledHoldingBroker",
    "drive",
]

T = TypeVar("T")

KEEP_BYTES = 3_000
VALUE_BYTES = 300
TABLE_MAX = 3
RUNS_PER_SNAPSHOT = 2
DELAY_MS_MAX = 4_000
FAR_MS = 3_600_000
SEGMENTS_PER_DROP = 2


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing but its next turn."""
    while True:
        try:
            work.send(None)
        except StopIteration as done:
            result: T = done.value
            return result


class _NoTimers:
    """The workload says when somebody looks."""

    def add_after(self, _delay_s: float, _action: Callable[[], None]) -> SimpleNamespace:
        return SimpleNamespace(cancel=lambda: None)

    add_exactly_after = add_after


@final
class _LedPartition:
    """A partition whose only replica leads, as its holds see it."""

    def __init__(
        self, log: FilePartitionLog, append: Callable[[bytearray], object] | None = None
    ) -> None:
        self.name = A
        self.log = log
        self.settings = SimpleNamespace(
            policy=BatchPolicy(), holds=HoldPolicy(), segment_bytes=SMALL.segment_bytes
        )
        self.is_leader = True
        self.offline = False
        self._append = append or self._append_alone

    @property
    def high_watermark(self) -> int:
        return self.log.flushed_offset

    @property
    def durable_offset(self) -> int:
        return self.log.flushed_offset

    def check_writable(self, _acks: int) -> None:
        return

    @property
    def as_leader(self) -> _LedPartition:
        return self

    def append_ours(self, batch: bytearray, *, now_ms: int) -> object:
        return self._append(batch)

    def _append_alone(self, batch: bytearray) -> None:
        assign_offsets(batch, self.log.log_end_offset, self.log.epochs.latest)
        self.log.append([batch], [read_header(batch)], now_ms=0)


class Holding:
    """The holds of one log, and who works for them."""

    def __init__(
        self,
        disk: SimDisk,
        log: FilePartitionLog,
        clock: ManualClock,
        append: Callable[[bytearray], object] | None = None,
    ) -> None:
        self.host = HoldHost(clock)
        partition = _LedPartition(log, append)
        self.holds = PartitionHolds(partition, self.host)
        self.holds.spills = HoldSpills(log, table_max=TABLE_MAX, runs_max=RUNS_PER_SNAPSHOT)
        self.holds.book = self.holds.spills.new_book()
        self.releaser = Releaser(
            self.host,
            disk,
            clock=clock,
            timers=_NoTimers(),  # type: ignore[arg-type]
            telemetry=Telemetry(),
        )

    def work(self) -> None:
        """What the loops of the broker do once something woke them."""
        self._catch_up()
        for holds in list(self.host.partitions):
            self.host.look_at(holds)
        drive(self.releaser.release_due())
        self._catch_up()

    def keep(self) -> None:
        self.host.keep_all()
        self._catch_up()

    def _catch_up(self) -> None:
        drive(self.releaser.write_wanted())
        drive(self.releaser.replay_wanted())


@final
@dataclass(slots=True)
class HoldPromises:
    """What was promised about the holds of one log."""

    acked: set[int] = field(default_factory=set)
    """Tickets that a producer was told."""
    ended: dict[int, int] = field(default_factory=dict)
    """Ticket -> where the batch that ends it ends."""
    by_batch: dict[int, list[int]] = field(default_factory=dict)
    """Base offset of a batch -> its tickets."""
    clock: ManualClock = field(default_factory=ManualClock)


class HoldingBroker(MiniBroker):
    """The leader of one partition with held records."""

    def __init__(
        self, disk: SimDisk, promises: dict[TopicPartition, Promises], held: HoldPromises
    ) -> None:
        super().__init__(disk, promises)
        self._disk = disk
        self.held = held
        self.holding: Holding | None = None

    # --- requests from clients -------------------------------------------------------------------

    def begin(self) -> None:
        """Create the log, whose holds are kept from now on."""
        self.create(A, 1)
        self._open()

    def _open(self) -> None:
        self.holding = Holding(self._disk, self.log(A), self.held.clock, self._append_ours)
        self.holding.work()

    def hold(self, *delays_ms: int | None) -> SentBatch:
        """Append one batch of records that wait so long; None: of one that does not."""
        headers: list[list[Header]] = [
            [] if one is None else [(names.DELAY_MS, b"%d" % one)] for one in delays_ms
        ]
        batch = self._send_veiled(headers)
        first = batch.header.base_offset
        tickets = [first + at for at, one in enumerate(delays_ms) if one is not None]
        self.held.by_batch[first] = tickets
        return batch

    def cancel(self, ticket: int) -> None:
        target = names.TARGET, b"%d" % ticket
        batch = self._send_veiled([[(names.COMMAND, b"cancel"), target]])
        self.held.ended.setdefault(ticket, batch.header.next_offset)

    def _send_veiled(self, headers: list[list[Header]]) -> SentBatch:
        holding = self.led
        now_ms = self.held.clock.wall_ms()
        records = [
            Record(b"%d" % number + b"." * VALUE_BYTES, headers=one, timestamp=now_ms)
            for number, one in enumerate(headers)
        ]
        made = build_batch(records)
        veil(made, read_header(made), stamp_ms=holding.holds.steady_ms())
        sent = self._append(A, made)
        holding.holds.appended(memoryview(made), sent.header)
        holding.work()
        return sent

    def _append_ours(self, batch: bytearray) -> SentBatch:
        """Note what a release ends before the disk has it: it may be found from then on."""
        end = self.log(A).log_end_offset + read_header(batch).record_count
        for record in iter_records(batch):
            headers = dict(record.headers)
            if names.AXIS not in headers:
                self.held.ended.setdefault(int(headers[names.TICKET] or b""), end)
        sent = self._append(A, batch)
        self.led.holds.appended(memoryview(batch), sent.header)
        return sent

    @property
    def led(self) -> Holding:
        assert self.holding is not None
        return self.holding

    def ack(self, partition: TopicPartition, batch: SentBatch) -> None:
        super().ack(partition, batch)
        self.held.acked.update(self.held.by_batch.get(batch.header.base_offset, ()))

    # --- the broker's own work -------------------------------------------------------------------

    def pass_time(self, ms: int) -> None:
        self.held.clock.advance(ms / 1000)
        self.led.work()

    def keep_snapshot(self) -> None:
        self.led.keep()

    def carry(self) -> None:
        log = self.log(A)
        log.set_config(replace(SMALL, retention_bytes=KEEP_BYTES))
        drive(self.led.releaser.carry_expired())
        log.set_config(SMALL)

    def _plan_drop(self, log: FilePartitionLog) -> SegmentDrop | None:
        floor = self.led.holds.floor()
        return self.directory.plan_drop(
            log,
            log.front.look_at_ages(self._now_ms, SEGMENTS_PER_DROP),
            now_ms=self._now_ms,
            high_watermark=log.flushed_offset if floor is None else min(floor, log.flushed_offset),
            segments_max=SEGMENTS_PER_DROP,
        )

    def cut(self, offset: int) -> None:
        """As a follower does; what the cut batches had ended is open again.

        Other batches take their place before anybody looks for snapshots.
        """
        held = self.held
        held.acked = {ticket for ticket in held.acked if ticket < offset}
        held.by_batch = {base: made for base, made in held.by_batch.items() if base < offset}
        held.ended = {ticket: end for ticket, end in held.ended.items() if end <= offset}
        end = self.log(A).log_end_offset
        self.truncate(A, offset)
        self.new_leader_epoch()
        while self.log(A).log_end_offset <= end:
            self.produce(A, size=10)
        self.led.holds.was_cut()
        self.led.work()

    def reopen(self, disk: SimDisk) -> None:
        super().reopen(disk)
        self._disk = disk
        self._open()


class JournaledHoldingBroker(HoldingBroker):
    """The same; its flushes go to a small journal whenever they can."""

    journal = SMALL_JOURNAL
