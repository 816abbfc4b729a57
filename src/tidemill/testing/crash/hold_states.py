"""Crash states of a log with held records: the log, its runs of holds and its snapshots.

`HoldingBroker` has the real book, replay, releaser and files of one partition, over the log of a
`MiniBroker`. After a power loss at any disk call:

    I45  the book that a start finds, from whatever files are left, is what the log says
    I1   an acknowledged hold is open, or has ended in the log, or its end was durable and went
    I32  no ticket ends twice, and all that is open comes once the time has come
    I31  no release lies before its due time
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, final

from tidemill.core.ids import TopicPartition
from tidemill.core.rng import Rng, SeededRng
from tidemill.core.telemetry import Telemetry
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.holding.hold_policy import HoldPolicy
from tidemill.replication.holding.hold_spills import HoldSpills
from tidemill.replication.holding.partition_holds import PartitionHolds
from tidemill.replication.holding.releaser import Releaser
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.interface import PartitionLog
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment_drop import SegmentDrop
from tidemill.testing.crash.crash_states import check_promises
from tidemill.testing.crash.crash_workloads import A
from tidemill.testing.crash.mini_broker import (
    SMALL,
    SMALL_JOURNAL,
    MiniBroker,
    open_directory,
)
from tidemill.testing.crash.promises import BrokenPromise, Promises, SentBatch
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire import header_names as names
from tidemill.wire.batch import assign_offsets, iter_headers, read_header
from tidemill.wire.marks import is_ours, is_veiled, veil
from tidemill.wire.produced_batch import BatchPolicy
from tidemill.wire.records import Header, Record, build_batch, iter_records

__all__ = [
    "HoldPromises",
    "HoldingBroker",
    "JournaledHoldingBroker",
    "check_holds",
    "cut_workload",
    "hold_workload",
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


class _Holding:
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
        drive(self.releaser.replay_wanted())
        for holds in list(self.host.partitions):
            self.host.look_at(holds)
        drive(self.releaser.release_due())
        drive(self.releaser.replay_wanted())

    def keep(self) -> None:
        self.host.keep_all()
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
        self.holding: _Holding | None = None

    # --- requests from clients -------------------------------------------------------------------

    def begin(self) -> None:
        """Create the log, whose holds are kept from now on."""
        self.create(A, 1)
        self._open()

    def _open(self) -> None:
        self.holding = _Holding(self._disk, self.log(A), self.held.clock, self._append_ours)
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
        holding = self._holding
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
        self._holding.holds.appended(memoryview(batch), sent.header)
        return sent

    @property
    def _holding(self) -> _Holding:
        assert self.holding is not None
        return self.holding

    def ack(self, partition: TopicPartition, batch: SentBatch) -> None:
        super().ack(partition, batch)
        self.held.acked.update(self.held.by_batch.get(batch.header.base_offset, ()))

    # --- the broker's own work -------------------------------------------------------------------

    def pass_time(self, ms: int) -> None:
        self.held.clock.advance(ms / 1000)
        self._holding.work()

    def keep_snapshot(self) -> None:
        self._holding.keep()

    def carry(self) -> None:
        log = self.log(A)
        log.set_config(replace(SMALL, retention_bytes=KEEP_BYTES))
        drive(self._holding.releaser.carry_expired())
        log.set_config(SMALL)

    def _plan_drop(self, log: FilePartitionLog) -> SegmentDrop | None:
        floor = self._holding.holds.floor()
        return self.directory.plan_drop(
            log,
            log.look_at_ages(self._now_ms, SEGMENTS_PER_DROP),
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
        self._holding.holds.was_cut()
        self._holding.work()

    def reopen(self, disk: SimDisk) -> None:
        super().reopen(disk)
        self._disk = disk
        self._open()


class JournaledHoldingBroker(HoldingBroker):
    """The same; its flushes go to a small journal whenever they can."""

    journal = SMALL_JOURNAL


# --- what a crash may leave -----------------------------------------------------------------------


class _Found(NamedTuple):
    """What a log says about its holds, one record after the other."""

    open: dict[int, tuple[int, int]]
    """Ticket -> copy and due time."""
    ended: dict[int, int]
    """Ticket -> how often."""


def check_holds(
    directory: LogDirectory, promises: dict[TopicPartition, Promises], held: HoldPromises
) -> None:
    """Raises BrokenPromise if the log or its holds break a promise."""
    check_promises(directory, promises)
    log = directory.get(A)
    if log is None:
        return
    found = _found(log)
    _check_open(log, found, held)
    disk = directory._disk
    assert isinstance(disk, SimDisk)
    again = _replayed(disk, log, held)
    book = {one.ticket: (one.offset, one.due_ms) for one in again.holds.book.held()}
    _require(book == found.open, f"I45: the book has {book}, the log {found.open}")
    _check_all_come(disk, held)


def _check_open(log: PartitionLog, found: _Found, held: HoldPromises) -> None:
    for ticket in held.acked:
        if ticket in found.open or ticket in found.ended:
            continue
        is_over = held.ended.get(ticket, 1 << 62) <= log.log_start_offset
        _require(is_over, f"I1: the hold {ticket} is lost")
    for ticket, (copy, _) in found.open.items():
        _require(copy >= log.log_start_offset, f"I1: the copy of {ticket} is gone")


def _check_all_come(disk: SimDisk, held: HoldPromises) -> None:
    """After another power loss, when everything is due."""
    log = open_directory(disk.crash_image(SeededRng(1))).get(A)
    if log is None:
        return
    before = _found(log)
    again = _replayed(disk, log, held, later_ms=2 * FAR_MS)
    again.work()
    after = _found(log)
    _require(not after.open, f"I32: never released: {after.open}")
    came = {ticket: after.ended.get(ticket, 0) for ticket in before.open}
    _require(set(came.values()) <= {1}, f"I32: these came as often: {came}")


def _replayed(
    disk: SimDisk, log: FilePartitionLog, held: HoldPromises, later_ms: int = 0
) -> _Holding:
    """The holds as the next process finds them; nothing is due yet."""
    now = held.clock
    clock = ManualClock(wall_ms=now.wall_ms() + later_ms, monotonic=now.monotonic())
    again = _Holding(disk, log, clock)
    holds, leader = again.holds, again.holds.partition.as_leader
    append = leader.append_ours

    def append_and_fold(batch: bytearray, *, now_ms: int) -> None:
        append(batch, now_ms=now_ms)
        holds.appended(memoryview(batch), read_header(batch))

    leader.append_ours = append_and_fold  # type: ignore[method-assign]
    drive(again.releaser.replay_wanted())
    _require(again.holds.is_whole, "the holds cannot be read")
    return again


def _found(log: PartitionLog) -> _Found:
    found = _Found({}, {})
    for data in _batches(log):
        header = read_header(data)
        for record in iter_records(data):
            headers = dict(record.headers)
            if is_ours(header):
                _add_ours(found, record, headers, is_copy=is_veiled(header))
            elif names.COMMAND in headers:
                _end(found, int(headers[names.TARGET] or b""))
            elif names.DELAY_MS in headers:
                due_ms = header.base_timestamp + int(headers[names.DELAY_MS] or b"")
                found.open[record.offset] = record.offset, due_ms
    return found


def _add_ours(
    found: _Found, record: Record, headers: dict[str, bytes | None], *, is_copy: bool
) -> None:
    ticket, due_ms = int(headers[names.TICKET] or b""), int(headers[names.DUE] or b"")
    if is_copy:
        found.open[ticket] = record.offset, due_ms
        return
    _require(record.timestamp >= due_ms, f"I31: {ticket} was released at {record.timestamp}")
    _require(ticket not in found.ended, f"I32: {ticket} ends twice")
    _end(found, ticket)


def _end(found: _Found, ticket: int) -> None:
    if found.open.pop(ticket, None) is not None or ticket not in found.ended:
        found.ended[ticket] = found.ended.get(ticket, 0) + 1


def _batches(log: PartitionLog) -> Iterator[bytes]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, max_bytes=1 << 16, end_offset=log.log_end_offset)
        data = b"".join(found.chunks if found.load is None else found.load())
        for position, header in iter_headers(data):
            yield data[position : position + header.size_bytes]
            offset = header.next_offset


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise BrokenPromise(message)


# --- workloads ------------------------------------------------------------------------------------


def hold_workload(broker: HoldingBroker, disk: SimDisk, *, rng: Rng, steps: int) -> None:
    """Holds, releases, cancels, carries, drops and process ends, by chance."""
    broker.begin()
    for _ in range(steps):
        choice = rng.below(12)
        if choice < 5:
            broker.hold(*[_delay(rng) for _ in range(1 + rng.below(3))])
        elif choice < 7:
            broker.pass_time(1 + rng.below(DELAY_MS_MAX))
        elif choice == 7:
            _cancel_one(broker, rng)
        elif choice == 8:
            broker.keep_snapshot()
        elif choice == 9:
            broker.carry()
            broker.apply_retention(A, keep_bytes=KEEP_BYTES)
        elif choice == 10:
            broker.checkpoint()
        else:
            disk = disk.restart()
            broker.reopen(disk)
        if rng.below(3):
            broker.flush()


def _delay(rng: Rng) -> int | None:
    if rng.below(4) == 0:
        return None
    return rng.below(DELAY_MS_MAX) + (FAR_MS if rng.below(5) == 0 else 0)


def _cancel_one(broker: HoldingBroker, rng: Rng) -> None:
    held = [one.ticket for one in broker._holding.holds.book.held()]
    if held:
        broker.cancel(held[rng.below(len(held))])


def cut_workload(broker: HoldingBroker, _disk: SimDisk) -> None:
    """A follower with a snapshot cuts what it describes, and writes other batches there."""
    broker.begin()
    for number in range(4):
        broker.hold(DELAY_MS_MAX + number, FAR_MS)
        broker.flush()
    for _ in range(3):
        broker.keep_snapshot()
        broker.flush()
    broker.pass_time(2 * DELAY_MS_MAX)
    broker.flush()
    broker.keep_snapshot()
    broker.cut(4)
    for number in range(4):
        broker.hold(FAR_MS + number, None)
        broker.flush()
    broker.keep_snapshot()
    broker.flush()
    broker.pass_time(DELAY_MS_MAX)
    broker.flush()
