"""Crash states of a log with held records: the log, its runs of holds and its snapshots.

`HoldingBroker` has the real book, replay, releaser and files of one partition, over the log of a
`MiniBroker`. After a power loss at any disk call:

    I45  the book that a start finds, from whatever files are left, is what the log says
    I1   an acknowledged hold is open, or has ended in the log, or its end was durable and went
    I32  no ticket ends twice, and all that is open comes once the time has come
    I31  no release lies before its due time
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.core.ids import TopicPartition
from tidemill.core.rng import Rng, SeededRng
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.interface import PartitionLog
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.crash.crash_states import check_promises
from tidemill.testing.crash.crash_workloads import A
from tidemill.testing.crash.holding_broker import (
    DELAY_MS_MAX,
    FAR_MS,
    KEEP_BYTES,
    Holding,
    HoldingBroker,
    HoldPromises,
    drive,
)
from tidemill.testing.crash.mini_broker import (
    open_directory,
)
from tidemill.testing.crash.promises import BrokenPromise, Promises
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire import header_names as names
from tidemill.wire.batch import iter_headers, read_header
from tidemill.wire.marks import is_ours, is_veiled
from tidemill.wire.records import Record, iter_records

__all__ = ["check_holds", "cut_workload", "hold_workload"]


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
) -> Holding:
    """The holds as the next process finds them; nothing is due yet."""
    now = held.clock
    clock = ManualClock(wall_ms=now.wall_ms() + later_ms, monotonic=now.monotonic())
    again = Holding(disk, log, clock)
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
    held = [one.ticket for one in broker.led.holds.book.held()]
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
