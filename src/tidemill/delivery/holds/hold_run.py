"""Open holds in a buffer, which is a mapped file: what was in memory, written and sorted.

    count, wall count, id count   u32 each, and four bytes of zero
    due        i64[count]         rows are sorted by axis, due time and ticket
    ticket     i64[count]
    offset     i64[count]         of the copy
    size       u32[count]         of the record
    by_offset  u32[count]         the rows in the order of their copies
    by_ticket  u32[count]         the rows in the order of their tickets
    by_id      u32[id count]      the rows with a message id, in the order of the hashes of the ids,
                                  then of the ids, of equal ones the highest copy first
    id_hash    u32[id count]      these hashes (CRC-32)
    id_end     u32[count]         where a row's id ends among the ids; only if there are any
    ids                           of all rows, one after the other

In the byte order of the machine: the file says so, and is rebuilt elsewhere. A run never changes.
What is taken is noted in memory, a byte per row: the next open row is found by a search for a zero.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import final
from zlib import crc32

from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_capture import RunCapture

__all__ = ["HoldRun", "encode_run"]

_HEAD = Struct("=III4s")
_ORDER = {"little": b"<\0\0\0", "big": b">\0\0\0"}[sys.byteorder]
_TAKEN = 1
_OPEN = 0


def encode_run(holds: Sequence[Hold]) -> bytes:
    """The run of these holds, which are no schedules. Slow: milliseconds for ten thousand."""
    rows = sorted(holds, key=lambda hold: (hold.axis, hold.due_ms, hold.ticket))
    numbers = range(len(rows))
    with_id = [row for row in numbers if rows[row].message_id is not None]
    wall_count = sum(hold.axis is Axis.WALL for hold in rows)
    columns = [
        array("q", [hold.due_ms for hold in rows]),
        array("q", [hold.ticket for hold in rows]),
        array("q", [hold.offset for hold in rows]),
        array("I", [hold.size_bytes for hold in rows]),
        array("I", sorted(numbers, key=lambda row: rows[row].offset)),
        array("I", sorted(numbers, key=lambda row: rows[row].ticket)),
    ]
    ids: list[bytes] = []
    if with_id:
        ids = [hold.message_id or b"" for hold in rows]
        hashed = sorted([(crc32(ids[row]), ids[row], -rows[row].offset, row) for row in with_id])
        columns.append(array("I", [row for _, _, _, row in hashed]))
        columns.append(array("I", [id_hash for id_hash, _, _, _ in hashed]))
        columns.append(_ends(ids))
    head = _HEAD.pack(len(rows), wall_count, len(with_id), _ORDER)
    return b"".join([head, *[column.tobytes() for column in columns], *ids])


def _ends(ids: Sequence[bytes]) -> array[int]:
    ends = array("I")
    end = 0
    for one in ids:
        end += len(one)
        ends.append(end)
    return ends


@final
class HoldRun:
    """The open holds of one buffer. A shelf (`hold_shelves`) that only loses holds.

    Raises ValueError for a buffer that is none; its checksum was verified.
    """

    def __init__(self, data: memoryview, captured: RunCapture | None = None) -> None:
        if len(data) < _HEAD.size:
            raise ValueError("the run is cut")
        count, wall_count, id_count, order = _HEAD.unpack_from(data)
        if order != _ORDER:
            raise ValueError("the run was written by a machine with another byte order")
        self._columns = _Columns(data, count, id_count)
        self.checksum = crc32(data)
        """Tells runs apart that have the same serial: a log that was cut numbers them anew."""
        if captured is not None and (captured.checksum, len(captured.taken)) != (
            self.checksum,
            count,
        ):
            raise ValueError("this is another run than the one that was captured")
        self._taken = bytearray(count) if captured is None else bytearray(captured.taken)
        self._open_count = self._taken.count(_OPEN)
        self._next = {Axis.WALL: 0, Axis.STEADY: wall_count}
        """The row before which all are taken."""
        self._ends = {Axis.WALL: wall_count, Axis.STEADY: count}
        self._oldest = 0
        """The place in `by_offset` before which all are taken."""
        self._newest: dict[int, int] = {}
        """Of ids that were searched: from the first place of one in `by_id` to that of the first
        which is not taken."""

    def __len__(self) -> int:
        return self._open_count

    @property
    def count(self) -> int:
        """How many it had when it was written."""
        return len(self._taken)

    def taken_rows(self) -> bytes:
        """What a snapshot needs to open the run again as it is now."""
        return bytes(self._taken)

    def take(self, ticket: int) -> Hold | None:
        row = self._row(ticket)
        if row is None:
            return None
        self._taken[row] = _TAKEN
        self._open_count -= 1
        return self._hold(row)

    def find(self, ticket: int) -> Hold | None:
        row = self._row(ticket)
        return None if row is None else self._hold(row)

    def find_id(self, message_id: bytes) -> Hold | None:
        columns, wanted = self._columns, crc32(message_id)
        low = bisect_left(columns.id_hash, wanted)
        high = bisect_right(columns.id_hash, wanted, low)
        first = bisect_left(columns.by_id, message_id, low, high, key=columns.id_of)
        at = self._newest.get(first, first)
        while at < high and self._taken[columns.by_id[at]]:
            at += 1
        if at > first:
            self._newest[first] = at
        if at == high or columns.id_of(columns.by_id[at]) != message_id:
            return None
        return self._hold(columns.by_id[at])

    def first_due(self, axis: Axis) -> tuple[int, int] | None:
        row = self._taken.find(_OPEN, self._next[axis], self._ends[axis])
        if row < 0:
            self._next[axis] = self._ends[axis]
            return None
        self._next[axis] = row
        return self._columns.due[row], self._columns.ticket[row]

    def due(self, axis: Axis, now_ms: int, count_max: int) -> Iterator[Hold]:
        row = self._taken.find(_OPEN, self._next[axis], self._ends[axis])
        while row >= 0 and count_max > 0 and self._columns.due[row] <= now_ms:
            yield self._hold(row)
            count_max -= 1
            row = self._taken.find(_OPEN, row + 1, self._ends[axis])

    def oldest_copy(self) -> int | None:
        order = self._columns.by_offset
        while self._oldest < len(order) and self._taken[order[self._oldest]]:
            self._oldest += 1
        return self._columns.offset[order[self._oldest]] if self._oldest < len(order) else None

    def held(self, start: int) -> Iterator[Hold]:
        """Those whose copy is at `start` or behind, by copy."""
        order = self._columns.by_offset
        first = bisect_left(order, start, key=self._columns.offset.__getitem__)
        for row in order[first:]:
            if not self._taken[row]:
                yield self._hold(row)

    def bytes_below(self, offset: int) -> int:
        columns, taken = self._columns, self._taken
        end = bisect_left(columns.by_offset, offset, key=columns.offset.__getitem__)
        return sum([columns.size[row] for row in columns.by_offset[:end] if not taken[row]])

    def _row(self, ticket: int) -> int | None:
        """The row of an open ticket."""
        order, tickets = self._columns.by_ticket, self._columns.ticket
        at = bisect_left(order, ticket, key=tickets.__getitem__)
        if at == len(order) or tickets[order[at]] != ticket or self._taken[order[at]]:
            return None
        return order[at]

    def _hold(self, row: int) -> Hold:
        columns = self._columns
        axis = Axis.WALL if row < self._ends[Axis.WALL] else Axis.STEADY
        return Hold(
            columns.ticket[row],
            columns.due[row],
            axis,
            columns.offset[row],
            columns.size[row],
            columns.id_of(row) or None,
        )


@final
class _Columns:
    """The columns of a run, as numbers."""

    def __init__(self, data: memoryview, count: int, id_count: int) -> None:
        self._data = data
        self._at = _HEAD.size
        self.due = self._column("q", count)
        self.ticket = self._column("q", count)
        self.offset = self._column("q", count)
        self.size = self._column("I", count)
        self.by_offset = self._column("I", count)
        self.by_ticket = self._column("I", count)
        self.by_id = self._column("I", id_count)
        self.id_hash = self._column("I", id_count)
        self._id_end = self._column("I", count if id_count else 0)
        self._ids = data[self._at :]
        ids_bytes = self._id_end[count - 1] if id_count else 0
        if len(self._ids) != ids_bytes:
            raise ValueError(f"{len(self._ids)} bytes of ids, {ids_bytes} were written")

    def id_of(self, row: int) -> bytes:
        """The message id of a row; empty if it has none."""
        if not self._id_end:
            return b""
        start = self._id_end[row - 1] if row else 0
        return bytes(self._ids[start : self._id_end[row]])

    def _column(self, code: str, count: int) -> memoryview:
        size = count * array(code).itemsize
        column = self._data[self._at : self._at + size]
        if len(column) != size:
            raise ValueError("the run is cut")
        self._at += size
        return column.cast(code)  # type: ignore[call-overload,no-any-return]  # codes of two types
