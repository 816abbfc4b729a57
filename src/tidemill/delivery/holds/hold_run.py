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
What is taken is noted in memory (`hold_rows`).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from struct import Struct
from typing import final
from zlib import crc32

from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_capture import RunCapture
from tidemill.delivery.holds.hold_rows import HoldRows
from tidemill.delivery.holds.hold_strand import FrozenStrand
from tidemill.hot.hold_scan import is_rising

__all__ = ["HoldRun", "encode_run"]

_HEAD = Struct("=III4s")
_ORDER = {"little": b"<\0\0\0", "big": b">\0\0\0"}[sys.byteorder]


def encode_run(holds: Sequence[Hold], strands: Iterable[FrozenStrand] = ()) -> bytes:
    """The run of these holds, none of which is a schedule. Milliseconds for ten thousand."""
    rows = {axis: _AxisRows() for axis in Axis}
    for strand in strands:
        rows[strand.axis].add_strand(strand)
    for hold in holds:
        rows[hold.axis].add(hold)
    wall, steady = rows[Axis.WALL].in_order(), rows[Axis.STEADY].in_order()
    count = len(wall.due) + len(steady.due)
    columns = [
        wall.due + steady.due,
        tickets := wall.ticket + steady.ticket,
        offsets := wall.offset + steady.offset,
        array("I", wall.size + steady.size),
        array("I", _order(range(count), offsets)),
        array("I", _order(range(count), tickets)),
    ]
    ids: list[bytes] = []
    hashed: list[tuple[int, bytes, int, int]] = []
    if wall.has_ids or steady.has_ids:
        ids = [one or b"" for one in wall.ids + steady.ids]
        hashed = sorted(
            [(crc32(one), one, -offsets[row], row) for row, one in enumerate(ids) if one]
        )
    if hashed:
        columns.append(array("I", [row for _, _, _, row in hashed]))
        columns.append(array("I", [id_hash for id_hash, _, _, _ in hashed]))
        columns.append(array("I", accumulate([len(one) for one in ids])))
    head = _HEAD.pack(count, len(wall.due), len(hashed), _ORDER)
    return b"".join([head, *[column.tobytes() for column in columns], *ids])


@final
class _AxisRows:
    """The rows of one axis, while a run is made of them."""

    def __init__(self) -> None:
        self.due = array("q")
        self.ticket = array("q")
        self.offset = array("q")
        self.size = array("q")
        self.ids: list[bytes | None] = []
        self.has_ids = False

    def add(self, hold: Hold) -> None:
        self.due.append(hold.due_ms)
        self.ticket.append(hold.ticket)
        self.offset.append(hold.offset)
        self.size.append(hold.size_bytes)
        self.ids.append(hold.message_id)
        self.has_ids = self.has_ids or hold.message_id is not None

    def add_strand(self, strand: FrozenStrand) -> None:
        self.due += strand.open(strand.dues)
        self.ticket += strand.open(strand.tickets)
        self.offset += strand.open(strand.tickets)
        self.size += strand.open(strand.sizes)
        self.ids += strand.open_ids()
        self.has_ids = self.has_ids or strand.has_ids

    def in_order(self) -> _AxisRows:
        """The same rows by due time, and of equal ones by ticket."""
        count = len(self.due)
        order = _order(_order(range(count), self.ticket), self.due)
        if isinstance(order, range):
            return self
        made = _AxisRows()
        made.due = array("q", map(self.due.__getitem__, order))
        made.ticket = array("q", map(self.ticket.__getitem__, order))
        made.offset = array("q", map(self.offset.__getitem__, order))
        made.size = array("q", map(self.size.__getitem__, order))
        made.ids, made.has_ids = list(map(self.ids.__getitem__, order)), self.has_ids
        return made


def _order(rows: Sequence[int], keys: array[int]) -> Sequence[int]:
    """The rows by their keys, equal ones as they are; `rows` itself if that is their order."""
    ordered = keys if isinstance(rows, range) else array("q", map(keys.__getitem__, rows))
    if is_rising(ordered):
        return rows
    return sorted(rows, key=keys.__getitem__)


@final
class HoldRun(HoldRows):
    """The open holds of one buffer. Raises ValueError if it is none; its checksum was verified."""

    def __init__(self, data: memoryview, captured: RunCapture | None = None) -> None:
        if len(data) < _HEAD.size:
            raise ValueError("the run is cut")
        count, wall_count, id_count, order = _HEAD.unpack_from(data)
        if order != _ORDER:
            raise ValueError("the run was written by a machine with another byte order")
        self.checksum = crc32(data)
        """Tells runs apart that have the same serial: a log that was cut numbers them anew."""
        if captured is not None and (captured.checksum, len(captured.taken)) != (
            self.checksum,
            count,
        ):
            raise ValueError("this is another run than the one that was captured")
        taken = bytearray(count) if captured is None else bytearray(captured.taken)
        super().__init__(_Columns(data, count, id_count), wall_count=wall_count, taken=taken)

    def taken_rows(self) -> bytes:
        """What a snapshot needs to open the run again as it is now."""
        return bytes(self._taken)


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
        self._by_id = self._column("I", id_count)
        self._id_hash = self._column("I", id_count)
        self._has_ids = id_count > 0
        self._id_end = self._column("I", count if id_count else 0)
        self._ids = data[self._at :]
        ids_bytes = self._id_end[count - 1] if id_count else 0
        if len(self._ids) != ids_bytes:
            raise ValueError(f"{len(self._ids)} bytes of ids, {ids_bytes} were written")

    def id_of(self, row: int) -> bytes | None:
        return (self._id_bytes(row) or None) if self._has_ids else None

    def _id_bytes(self, row: int) -> bytes:
        start = self._id_end[row - 1] if row else 0
        return bytes(self._ids[start : self._id_end[row]])

    def rows_of_id(self, message_id: bytes) -> Sequence[int]:
        wanted = crc32(message_id)
        low = bisect_left(self._id_hash, wanted)
        high = bisect_right(self._id_hash, wanted, low)
        first = bisect_left(self._by_id, message_id, low, high, key=self._id_bytes)
        end = bisect_right(self._by_id, message_id, first, high, key=self._id_bytes)
        return self._by_id[first:end]

    def _column(self, code: str, count: int) -> memoryview:
        size = count * array(code).itemsize
        column = self._data[self._at : self._at + size]
        if len(column) != size:
            raise ValueError("the run is cut")
        self._at += size
        return column.cast(code)  # type: ignore[call-overload,no-any-return]  # codes of two types
