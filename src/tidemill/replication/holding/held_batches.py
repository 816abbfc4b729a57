"""Makes batches of ours of holds that were found in the log: for a thread. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tidemill.core.limits import REPACKED_BYTES_MIN
from tidemill.delivery.holds.copies.held_records import read_held
from tidemill.delivery.holds.copies.own_batches import HeldCopy, carried_batch, release_batch
from tidemill.delivery.holds.copies.release_copies import can_copy, release_copies
from tidemill.delivery.holds.hold import DUE_NEVER, Axis, Hold
from tidemill.delivery.holds.schedule import ScheduleError, next_tick_ms
from tidemill.wire import compression
from tidemill.wire.batch import CorruptBatch, read_header
from tidemill.wire.records import Record

__all__ = ["make_carried", "make_release"]

Buffer = bytes | bytearray | memoryview
Stored = Sequence[tuple[Hold, Buffer]]
"""Holds in the order in which they are written, each with the batch that it lies in."""


def make_release(stored: Stored, *, now_ms: int, wall_ms: int, codec: int) -> bytearray:
    """The batch that delivers these holds. Of ticks that were missed one comes."""
    codec = _codec([hold for hold, _ in stored], codec)
    if all(can_copy(hold) for hold, _ in stored):
        return release_copies(stored, now_ms=now_ms, codec=codec)
    records = _records(stored)
    copies = []
    for hold, _ in stored:
        next_ms = None
        if hold.schedule is not None:
            next_ms = _try_tick(hold.schedule, max(hold.due_ms, wall_ms))
        copies.append(HeldCopy(hold, records[hold.offset], next_ms))
    return release_batch(copies, now_ms=now_ms, codec=codec)


def make_carried(
    stored: Stored, *, now_ms: int, wall_ms: int, stamp_ms: int, codec: int
) -> bytearray:
    """The batch in which these holds lie from now on; a new schedule gets its first tick.

    A schedule that ticks no more is held until somebody cancels it.
    """
    codec = _codec([hold for hold, _ in stored], codec)
    records = _records(stored)
    copies = []
    for hold, _ in stored:
        planned = hold
        if hold.needs_plan:
            tick_ms = _try_tick(hold.schedule or "", wall_ms)
            due_ms = DUE_NEVER if tick_ms is None else tick_ms
            planned = hold._replace(due_ms=due_ms, axis=Axis.WALL)
        copies.append(HeldCopy(planned, records[hold.offset]))
    return carried_batch(copies, now_ms=now_ms, stamp_ms=stamp_ms, codec=codec)


def _try_tick(line: str, after_ms: int) -> int | None:
    try:
        return next_tick_ms(line, after_ms=after_ms)
    except ScheduleError:
        return None


def _records(stored: Stored) -> dict[int, Record]:
    """The held records by offset; each batch is opened once. CorruptBatch."""
    by_offset = sorted(stored, key=lambda one: one[0].offset)
    records: dict[int, Record] = {}
    for _, some in groupby(by_offset, key=lambda one: id(one[1])):
        inside = list(some)
        batch = inside[0][1]
        offsets = {hold.offset for hold, _ in inside}
        for record in read_held(batch, read_header(batch), offsets):
            records[record.offset] = record
    if len(records) != len(stored):
        raise CorruptBatch("a held record is not where it was")
    return records


def _codec(holds: Sequence[Hold], codec: int) -> int:
    size_bytes = sum(hold.size_bytes for hold in holds)
    return codec if size_bytes > REPACKED_BYTES_MIN else compression.NONE
