"""Open holds in rows of numbers, sorted by due time, of which holds are only taken.

What is taken is noted in a byte per row: the next open row is found by a search for a zero.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Protocol

from tidemill.delivery.holds.hold import Axis, Hold

__all__ = ["HoldNumbers", "HoldRows"]

_TAKEN = 1
_OPEN = 0


class HoldNumbers(Protocol):
    """The numbers of the rows, which are sorted by axis, due time and ticket."""

    @property
    def due(self) -> Sequence[int]: ...

    @property
    def ticket(self) -> Sequence[int]: ...

    @property
    def offset(self) -> Sequence[int]:
        """Of the copy."""
        ...

    @property
    def size(self) -> Sequence[int]: ...

    @property
    def by_offset(self) -> Sequence[int]:
        """The rows in the order of their copies."""
        ...

    @property
    def by_ticket(self) -> Sequence[int]:
        """The rows in the order of their tickets."""
        ...

    def id_of(self, row: int) -> bytes | None: ...

    def rows_of_id(self, message_id: bytes) -> Sequence[int]:
        """All rows with this id, the highest copy first, however many there are."""
        ...


class HoldRows:
    """The open ones of some rows. A shelf (`hold_shelves`) that only loses holds."""

    def __init__(self, columns: HoldNumbers, *, wall_count: int, taken: bytearray) -> None:
        self._columns = columns
        self._taken = taken
        count = len(taken)
        self._open_count = taken.count(_OPEN)
        self._first_ticket = columns.ticket[0] if count else 0
        self._next = {Axis.WALL: 0, Axis.STEADY: wall_count}
        """The row before which all are taken."""
        self._ends = {Axis.WALL: wall_count, Axis.STEADY: count}
        self._oldest = 0
        """The place in `by_offset` before which all are taken."""
        self._newest: dict[bytes, int] = {}
        """Of ids that were searched: the place among their rows before which all are taken."""

    def __len__(self) -> int:
        return self._open_count

    @property
    def count(self) -> int:
        """How many it had when it was made."""
        return len(self._taken)

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
        rows = self._columns.rows_of_id(message_id)
        at = self._newest.get(message_id, 0)
        while at < len(rows) and self._taken[rows[at]]:
            at += 1
        if at:
            self._newest[message_id] = at
        return self._hold(rows[at]) if at < len(rows) else None

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
        tickets = self._columns.ticket
        row = ticket - self._first_ticket  # right away, if nothing lies between the tickets
        if not 0 <= row < len(tickets) or tickets[row] != ticket:
            order = self._columns.by_ticket
            at = bisect_left(order, ticket, key=tickets.__getitem__)
            if at == len(order) or tickets[order[at]] != ticket:
                return None
            row = order[at]
        return None if self._taken[row] else row

    def _hold(self, row: int) -> Hold:
        columns = self._columns
        return Hold(
            columns.ticket[row],
            columns.due[row],
            Axis.WALL if row < self._ends[Axis.WALL] else Axis.STEADY,
            columns.offset[row],
            columns.size[row],
            columns.id_of(row),
        )
