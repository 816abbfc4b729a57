"""The holds that one batch opened, in memory: until the table beside them is full."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import final

from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_columns import HoldColumns
from tidemill.delivery.holds.hold_rows import HoldRows

__all__ = ["FrozenStrand", "HoldStrand"]

_IS_OPEN = bytes.maketrans(b"\0\1", b"\1\0")


@final
class HoldStrand(HoldRows):
    """Many holds of one batch. A shelf (`hold_shelves`) that only loses holds."""

    def __init__(self, holds: HoldColumns) -> None:
        self._strand = _StrandColumns(holds)
        self.axis = holds.axis
        self._frozen_taken: bytes | None = None
        wall_count = len(holds) if holds.axis is Axis.WALL else 0
        super().__init__(self._strand, wall_count=wall_count, taken=bytearray(len(holds)))

    def freeze(self) -> FrozenStrand:
        """What is open, to be written by a thread; what is taken from now on is noted."""
        frozen = self.captured()
        self._frozen_taken = frozen.taken
        return frozen

    def captured(self) -> FrozenStrand:
        """What is open now, for a thread."""
        return FrozenStrand(self.axis, self._strand, bytes(self._taken))

    @property
    def taken(self) -> list[int]:
        """The tickets that were taken since the strand was frozen."""
        frozen = self._frozen_taken
        assert frozen is not None, "a strand is frozen before it is asked"
        if frozen == self._taken:
            return []
        rows = zip(self._strand.ticket, self._taken, frozen, strict=True)
        return [ticket for ticket, is_taken, was_taken in rows if is_taken and not was_taken]


@final
class FrozenStrand:
    """The rows of a strand that were open when it was frozen."""

    def __init__(self, axis: Axis, columns: _StrandColumns, taken: bytes) -> None:
        self.axis = axis
        self._columns = columns
        self.taken = taken
        """Rows that were not open then."""
        self.dues = columns.due
        self.tickets = columns.ticket
        self.sizes = columns.size
        self.has_ids = columns.ids is not None

    def __len__(self) -> int:
        return self.taken.count(0)

    def __iter__(self) -> Iterator[Hold]:
        numbers = [self.open(column) for column in (self.tickets, self.dues, self.sizes)]
        for ticket, due_ms, size_bytes, message_id in zip(*numbers, self.open_ids(), strict=True):
            yield Hold(ticket, due_ms, self.axis, ticket, size_bytes, message_id)

    def open(self, column: array[int]) -> array[int]:
        """The numbers of the open rows."""
        if not any(self.taken):
            return column
        return array("q", compress(column, self.taken.translate(_IS_OPEN)))

    def open_ids(self) -> Iterable[bytes | None]:
        """The message ids of the open rows."""
        ids = self._columns.ids
        if ids is None:
            return [None] * len(self)
        return compress(ids, self.taken.translate(_IS_OPEN))


@final
class _StrandColumns:
    """The columns of a strand, sorted by due time and ticket."""

    def __init__(self, holds: HoldColumns) -> None:
        self.due = holds.dues
        self.ticket = holds.tickets
        self.size = holds.sizes
        self.ids = holds.ids
        self.by_ticket: Sequence[int] = range(len(holds))
        if not holds.is_rising:
            self._sort(holds)
        self.offset = self.ticket
        self.by_offset = self.by_ticket
        self._rows: dict[bytes, list[int]] | None = None
        """By id, once somebody has asked for one: few do."""

    def _sort(self, holds: HoldColumns) -> None:
        # Equal due times stay in the order of their tickets.
        order = sorted(range(len(holds)), key=holds.dues.__getitem__)
        self.due = array("q", map(holds.dues.__getitem__, order))
        self.ticket = array("q", map(holds.tickets.__getitem__, order))
        self.size = array("q", map(holds.sizes.__getitem__, order))
        if holds.ids is not None:
            self.ids = list(map(holds.ids.__getitem__, order))
        self.by_ticket = array("I", sorted(range(len(holds)), key=order.__getitem__))

    def id_of(self, row: int) -> bytes | None:
        return None if self.ids is None else self.ids[row]

    def rows_of_id(self, message_id: bytes) -> Sequence[int]:
        if self.ids is None:
            return ()
        if self._rows is None:
            self._rows = {}
            for row in reversed(self.by_ticket):
                one = self.ids[row]
                if one is not None:
                    self._rows.setdefault(one, []).append(row)
        return self._rows.get(message_id, ())
