"""The open holds of a partition, on shelves: what came last in memory, and runs of what was there.

Theory of operation. A hold lies on exactly one shelf. Single holds lie in a table that grows, and
what a batch opens at once is a *strand* beside it. When these have enough they are *frozen*: a new
table takes their place, and somebody writes them as one run in a thread (`try_freeze`,
`Spill.encode`) and hands in the mapped file (`adopt`). Until then they are searched in memory, and
if nobody writes them, they stay there. Strands and runs only lose holds. One that has few left
gives them to the table and goes, so that the number of runs follows from what is held: ten million
holds are some six hundred runs, of which a byte per hold is in memory and the rest in mapped files.

A hold that is moved or carried is taken from its shelf and put into the table. Schedules stay in
tables: they are few, and each tick moves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import NamedTuple, Protocol, final

from tidemill.core.limits import HOLD_TABLE_MAX, HOLD_TABLES_FROZEN_MAX
from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_capture import RunCapture
from tidemill.delivery.holds.hold_columns import HoldColumns
from tidemill.delivery.holds.hold_rows import HoldRows
from tidemill.delivery.holds.hold_run import HoldRun, encode_run
from tidemill.delivery.holds.hold_strand import FrozenStrand, HoldStrand
from tidemill.delivery.holds.hold_table import HoldTable
from tidemill.delivery.holds.tickets.ticket_routes import TicketRoutes

__all__ = ["HoldShelf", "HoldShelves", "Spill"]

_SPARSE_PART = 32
"""A run with fewer than this part of its holds left gives them to the table."""
_STALE_HEADS_MIN = 64


class HoldShelf(Protocol):
    """Open holds, each found in four ways."""

    def __len__(self) -> int: ...

    def find(self, ticket: int) -> Hold | None: ...

    def find_id(self, message_id: bytes) -> Hold | None:
        """Of those with this id the one with the highest copy, however many there are."""
        ...

    def take(self, ticket: int) -> Hold | None:
        """Remove a hold."""
        ...

    def first_due(self, axis: Axis) -> tuple[int, int] | None:
        """The earliest due time, and the lowest ticket that has it."""
        ...

    def due(self, axis: Axis, now_ms: int, count_max: int) -> Iterator[Hold]:
        """What is due at `now_ms`, by due time and ticket."""
        ...

    def oldest_copy(self) -> int | None: ...

    def held(self, start: int) -> Iterator[Hold]:
        """Those whose copy is at `start` or behind, by copy."""
        ...

    def bytes_below(self, offset: int) -> int:
        """Of the records whose copy is below `offset`."""
        ...


class Spill(NamedTuple):
    """A frozen table, and the strands beside it, that wait to be written."""

    serial: int
    holds: list[Hold]
    strands: list[FrozenStrand]

    def encode(self) -> bytes:
        """The run; takes milliseconds, and may run in a thread."""
        return encode_run(self.holds, self.strands)


@final
class HoldShelves:
    """All open holds. `serial` is that of the first table: shelves are numbered on from there."""

    def __init__(self, *, serial: int = 0, table_max: int = HOLD_TABLE_MAX) -> None:
        self._table_max = table_max
        self._table = HoldTable()
        self._serial = serial
        """Of the table that grows."""
        self.next_serial = serial + 1
        """Higher than that of any shelf."""
        self._shelves: dict[int, HoldShelf] = {serial: self._table}
        self._strands: list[int] = []
        """The strands beside the table, by ticket; some may be gone."""
        self._frozen: dict[int, list[int]] = {}
        """Of each table that is being written, by its serial: it and its strands."""
        self._routes = TicketRoutes()
        self._count = 0
        self._heads: dict[Axis, list[tuple[int, int, int]]] = {axis: [] for axis in Axis}
        """(due, ticket, serial) of each shelf's first hold, and of some that no longer are."""
        self._unwritten: list[Spill] = []
        """Those that could not be written; no more than tables are frozen."""

    def __len__(self) -> int:
        return self._count

    @property
    def shelf_count(self) -> int:
        return len(self._shelves)

    @property
    def schedule_count(self) -> int:
        """All of them are in the table that grows."""
        return self._table.schedule_count

    # --- single holds ----------------------------------------------------------------------------

    def put(self, hold: Hold) -> None:
        """Add a hold whose ticket is on no shelf."""
        self._table.put(hold)
        self._count += 1
        self._note_head(self._serial, hold.axis)

    def take(self, ticket: int) -> Hold | None:
        """Remove a hold."""
        return self.take_many((ticket,))[0]

    def find(self, ticket: int) -> Hold | None:
        for serial in self._shelves_of(ticket):
            hold = self._shelves[serial].find(ticket)
            if hold is not None:
                return hold
        return None

    def find_id(self, message_id: bytes) -> Hold | None:
        """Of those with this id the one with the highest copy."""
        found = [shelf.find_id(message_id) for shelf in self._shelves.values()]
        open_ones = [hold for hold in found if hold is not None]
        return max(open_ones, key=lambda hold: hold.offset, default=None)

    def schedules_of(self, message_id: bytes) -> list[Hold]:
        """The schedules with this id."""
        return self._table.schedules_of(message_id)

    def _shelves_of(self, ticket: int) -> Iterator[int]:
        yield self._serial
        yield from self._routes.shelves_of(ticket)

    # --- many holds ------------------------------------------------------------------------------

    def put_many(self, holds: HoldColumns) -> None:
        """Add holds whose tickets are on no shelf."""
        serial = self._take_serial()
        self._shelves[serial] = HoldStrand(holds)
        self._strands.append(serial)
        self._routes.add(serial, holds.tickets)
        self._count += len(holds)
        self._note_head(serial, holds.axis)

    def take_many(self, tickets: Sequence[int]) -> list[Hold | None]:
        """Remove holds; in the place of a ticket that is on no shelf is None."""
        found: list[Hold | None] = []
        touched: dict[tuple[int, Axis], None] = {}
        serial = self._serial
        for ticket in tickets:
            # Whoever is due together often lies together.
            hold = self._shelves[serial].take(ticket)
            if hold is None:
                serial, hold = self._take_elsewhere(ticket)
            if hold is not None:
                self._count -= 1
                touched[serial, hold.axis] = None
            found.append(hold)
        for serial, axis in touched:
            if serial in self._shelves:
                self._note_head(serial, axis)
                self._maybe_drop(serial)
        return found

    def _take_elsewhere(self, ticket: int) -> tuple[int, Hold | None]:
        """Take it from the shelf that has it; and the serial of that shelf."""
        for serial in self._shelves_of(ticket):
            hold = self._shelves[serial].take(ticket)
            if hold is not None:
                return serial, hold
        return self._serial, None

    def due(self, now_ms: dict[Axis, int], count_max: int) -> Iterator[Hold]:
        """The first `count_max` that are due, each on its axis, by due time and ticket.

        Read it before anything is put or taken.
        """
        streams: list[Iterator[Hold]] = []
        for axis, now in now_ms.items():
            for shelf in self._shelves.values():
                first = shelf.first_due(axis)
                if first is not None and first[0] <= now:
                    streams.append(shelf.due(axis, now, count_max))
        return islice(merge(*streams, key=lambda hold: (hold.due_ms, hold.ticket)), count_max)

    def first_due(self, axis: Axis) -> int | None:
        """The earliest due time of an axis."""
        heads = self._heads[axis]
        while heads:
            due_ms, ticket, serial = heads[0]
            shelf = self._shelves.get(serial)
            if shelf is not None and shelf.first_due(axis) == (due_ms, ticket):
                return due_ms
            heappop(heads)
        return None

    def oldest_copy(self) -> int | None:
        copies = [shelf.oldest_copy() for shelf in self._shelves.values()]
        return min([copy for copy in copies if copy is not None], default=None)

    def held(self, start: int = 0) -> Iterator[Hold]:
        """Those whose copy is at `start` or behind, by copy."""
        streams = [shelf.held(start) for shelf in self._shelves.values()]
        return merge(*streams, key=lambda hold: hold.offset)

    def bytes_below(self, offset: int) -> Iterator[int]:
        """Of the records whose copy is below `offset`, shelf by shelf: about a millisecond each.

        It may be read on after changes: then it is about right.
        """
        for shelf in list(self._shelves.values()):
            yield shelf.bytes_below(offset)

    def _note_head(self, serial: int, axis: Axis) -> None:
        """Keep `_heads` complete: the shelf's first hold may be another one now."""
        first = self._shelves[serial].first_due(axis)
        heads = self._heads[axis]
        if first is not None and (not heads or heads[0] != (*first, serial)):
            heappush(heads, (*first, serial))
        if len(heads) > 2 * len(self._shelves) + _STALE_HEADS_MIN:
            self._rebuild_heads(axis)

    def _rebuild_heads(self, axis: Axis) -> None:
        firsts = [(shelf.first_due(axis), serial) for serial, shelf in self._shelves.items()]
        heads = [(*first, serial) for first, serial in firsts if first is not None]
        heapify(heads)
        self._heads[axis] = heads

    # --- tables and runs -------------------------------------------------------------------------

    def try_freeze(self) -> Spill | None:
        """Begin a new table if this one is full; the caller writes the old one and adopts it.

        What could not be written before comes first.
        """
        if self._unwritten:
            return self._unwritten.pop(0)
        strands = [serial for serial in self._strands if serial in self._shelves]
        plain = len(self._table) - self.schedule_count
        plain += sum([len(self._shelves[serial]) for serial in strands])
        if plain < self._table_max or len(self._frozen) >= HOLD_TABLES_FROZEN_MAX:
            return None
        old, serial = self._table, self._serial
        self._begin_table()
        for hold in old.schedules():
            old.take(hold.ticket)
            self._table.put(hold)
        holds = old.freeze()
        self._frozen[serial] = [*strands, serial]
        self._routes.add(serial, [hold.ticket for hold in holds])
        for axis in Axis:
            self._rebuild_heads(axis)
        return Spill(serial, holds, [self._strand(one).freeze() for one in strands])

    def _strand(self, serial: int) -> HoldStrand:
        shelf = self._shelves[serial]
        assert isinstance(shelf, HoldStrand)
        return shelf

    def _begin_table(self) -> None:
        self._serial = self._take_serial()
        self._table = HoldTable()
        self._shelves[self._serial] = self._table
        self._strands = []

    def _take_serial(self) -> int:
        self.next_serial += 1
        return self.next_serial - 1

    def give_back(self, spill: Spill) -> None:
        """The run could not be written: its holds stay in memory, until the next attempt."""
        if spill.serial in self._frozen:
            self._unwritten.append(spill)

    def adopt(self, serial: int, data: memoryview) -> bool:
        """Put the run in the place of what was frozen; False: it is not needed any more."""
        parts = self._frozen.pop(serial, None)
        if parts is None:
            return False
        run = HoldRun(data)
        for part in parts:
            shelf = self._shelves.pop(part)
            assert isinstance(shelf, HoldTable | HoldStrand)
            for ticket in shelf.taken:
                run.take(ticket)
        self._shelves[serial] = run
        self._routes.merge(serial, parts)
        for axis in Axis:
            self._note_head(serial, axis)
        self._maybe_drop(serial)
        return serial in self._shelves

    def captured(self) -> tuple[list[Hold], list[FrozenStrand], list[RunCapture]]:
        """The holds in memory, and what became of those in runs."""
        holds: list[Hold] = []
        strands: list[FrozenStrand] = []
        runs: list[RunCapture] = []
        for serial, shelf in self._shelves.items():
            if isinstance(shelf, HoldRun):
                tickets = self._routes.range_of(serial)
                runs.append(RunCapture(serial, shelf.checksum, tickets, shelf.taken_rows()))
            elif isinstance(shelf, HoldStrand):
                strands.append(shelf.captured())
            else:
                holds += shelf.held(0)
        return holds, strands, runs

    def restore(self, holds: Iterable[Hold], runs: Iterable[tuple[RunCapture, memoryview]]) -> None:
        """Fill empty shelves with what was captured; ValueError if a buffer is not its run."""
        # In the order in which they were written: routes are found by bisection.
        for captured, data in sorted(runs, key=lambda run: run[0].serial):
            run = HoldRun(data, captured)
            self._shelves[captured.serial] = run
            self._routes.restore(captured.serial, captured.tickets)
            self._count += len(run)
        for hold in holds:
            self._table.put(hold)
            self._count += 1
        for axis in Axis:
            self._rebuild_heads(axis)

    def runs(self) -> list[int]:
        """The serials of the runs that are in use."""
        return [serial for serial, shelf in self._shelves.items() if isinstance(shelf, HoldRun)]

    def _maybe_drop(self, serial: int) -> None:
        """Drop a shelf that is empty, or has so little left that the table may have it.

        What is frozen stays until its run is there.
        """
        shelf = self._shelves[serial]
        if isinstance(shelf, HoldTable) or any(serial in parts for parts in self._frozen.values()):
            return
        left: Iterable[Hold] = ()
        if isinstance(shelf, HoldRows) and len(shelf) * _SPARSE_PART < shelf.count:
            left = list(shelf.held(0))
        elif len(shelf):
            return
        del self._shelves[serial]
        self._routes.drop(serial)
        for hold in left:
            self._table.put(hold)
            self._note_head(self._serial, hold.axis)
