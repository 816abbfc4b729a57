"""The holds of one partition: a fold over its log, the same on every replica.

    a held record       opens its ticket; in a transaction, when the commit marker comes
    a carried copy      takes the place of the copy before it
    a move, a tick      changes the due time
    a release, a cancel closes the ticket: the first one that names it

Theory of operation. The state after a prefix of the log is the set of open holds. Folding from
*any* later start gives the same set without the holds whose newest copy lies before the start
(I45); so a replica may begin with any file that starts at or below `floor`. Every rule here keeps
that: no event means something else because an older hold is known or not. That is why nothing is
remembered of tickets that are closed, why a carried copy always opens, and why of two holds with
one message id the one with the *higher copy* is meant, not the higher ticket.

Events come in the order of the log. A cut is a replay: `replay_from` says from where, `cut`
forgets, and the caller folds again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never, final

from tidemill.core.limits import HOLD_ENDINGS_MAX, HOLD_TABLE_MAX
from tidemill.delivery.holds.events import (
    Carried,
    Closed,
    ClosedMany,
    HoldEnding,
    HoldEvent,
    Moved,
    Opened,
    OpenedMany,
    Stamped,
    TransactionEnded,
)
from tidemill.delivery.holds.hold import DUE_TO_BE_PLANNED, Axis, Hold
from tidemill.delivery.holds.hold_capture import HoldCapture
from tidemill.delivery.holds.hold_columns import MANY_MIN, columns_of
from tidemill.delivery.holds.hold_headers import Target
from tidemill.delivery.holds.hold_shelves import HoldShelves, Spill
from tidemill.delivery.holds.tickets.copy_pins import CopyPins
from tidemill.delivery.holds.undecided_holds import UndecidedHolds

__all__ = ["HoldBook"]


@final
class HoldBook:
    """The open holds of one partition, and those that wait for the end of their transaction."""

    def __init__(self, *, serial: int = 0, table_max: int = HOLD_TABLE_MAX) -> None:
        self._table_max = table_max
        self._next_serial = serial
        """Of the shelves: runs that are being written when the log is cut belong to nobody."""
        self.next_offset = 0
        """Everything below is folded in."""
        self.pending_bytes = 0
        self.newest_stamp_ms = 0
        """Of the veiled batches: steady time never falls below it."""
        self.changes = 0
        """Rises when a hold ends or gets another due time or copy: the same number, no change."""
        self._clear()
        self._pins = CopyPins()

    def _clear(self) -> None:
        self.pending_bytes = 0
        self._open = HoldShelves(serial=self._next_serial, table_max=self._table_max)
        self._undecided = UndecidedHolds()
        self._endings: OrderedDict[Target, HoldEnding] = OrderedDict()
        """The last ones, by ticket and by id: for answers alone, the fold does not look."""

    # --- what the log says -----------------------------------------------------------------------

    def fold(self, events: Iterable[HoldEvent], *, offset: int) -> None:
        """Apply the events of the batch that ends right below `offset`."""
        for event in events:
            self._apply(event, offset)
        self.next_offset = offset

    def _apply(self, event: HoldEvent, end_offset: int) -> None:
        match event:
            case Stamped(stamp_ms):
                self.newest_stamp_ms = max(self.newest_stamp_ms, stamp_ms)
            case Opened(hold, producer_id):
                self.pending_bytes += hold.size_bytes
                if producer_id is None:
                    self._replace_schedule(hold, end_offset)
                    self._open.put(hold)
                else:
                    self._undecided.add(producer_id, hold)
            case OpenedMany(holds):
                self.pending_bytes += holds.size_bytes
                self._open.put_many(holds)
            case Carried(hold):
                self._end(hold.ticket, end_offset)
                self.pending_bytes += hold.size_bytes
                self._open.put(hold)
            case Moved(target, due_ms, axis):
                self._move(target, due_ms, axis)
            case Closed(target, ending):
                self._close(target, ending, end_offset)
            case ClosedMany(tickets):
                self._release(tickets, end_offset)
            case TransactionEnded(producer_id, is_commit):
                self._decide(producer_id, is_commit=is_commit, end_offset=end_offset)
            case _:
                assert_never(event)

    def _replace_schedule(self, hold: Hold, end_offset: int) -> None:
        """A new schedule takes the place of the one with the same id."""
        if hold.schedule is None or hold.message_id is None:
            return
        for older in self._open.schedules_of(hold.message_id):
            self._close(older.ticket, HoldEnding.CANCELLED, end_offset)

    def _move(self, target: Target, due_ms: int, axis: Axis) -> None:
        hold = self._find_target(target)
        if hold is None:
            return
        self.changes += 1
        moved = hold._replace(due_ms=max(due_ms, DUE_TO_BE_PLANNED + 1), axis=axis)
        if self._open.take(hold.ticket) is None:
            self._undecided.replace(moved)
        else:
            self._open.put(moved)

    def _close(self, target: Target, ending: HoldEnding, end_offset: int) -> None:
        if isinstance(target, bytes):
            named = self.find_id(target)
            if named is None:
                return
            target = named.ticket
        hold = self._end(target, end_offset)
        if hold is None:
            return
        self._remember(hold.ticket, ending)
        if hold.message_id is not None:
            self._remember(hold.message_id, ending)

    def _release(self, tickets: Sequence[int], end_offset: int) -> None:
        """Many at once: as `_close` does with each of them."""
        self.changes += 1
        lowest: int | None = None
        for ticket, found in zip(tickets, self._open.take_many(tickets), strict=True):
            hold = found or self._undecided.take(ticket)
            if hold is None:
                continue
            self.pending_bytes -= hold.size_bytes
            lowest = hold.offset if lowest is None else min(lowest, hold.offset)
            self._remember(hold.ticket, HoldEnding.RELEASED)
            if hold.message_id is not None:
                self._remember(hold.message_id, HoldEnding.RELEASED)
        if lowest is not None:
            self._pins.pin(lowest, end_offset=end_offset)  # all go at once, so one stands for all

    def _decide(self, producer_id: int, *, is_commit: bool, end_offset: int) -> None:
        decided = self._undecided.take_all(producer_id)
        if not is_commit:
            for hold in decided:
                self._end_copy(hold, end_offset)
            return
        for axis in Axis:
            self._open_many(axis, [hold for hold in decided if hold.axis is axis])

    def _open_many(self, axis: Axis, holds: Sequence[Hold]) -> None:
        """Open what a transaction has sent, in the order of the log: it may be very much."""
        plain = [hold for hold in holds if hold.schedule is None]
        if len(plain) >= MANY_MIN:
            self._open.put_many(columns_of(axis, plain))
            holds = [hold for hold in holds if hold.schedule is not None]
        for hold in holds:
            self._open.put(hold)

    def _end(self, ticket: int, end_offset: int) -> Hold | None:
        """Take a ticket out, open or undecided."""
        hold = self._open.take(ticket) or self._undecided.take(ticket)
        if hold is not None:
            self._end_copy(hold, end_offset)
        return hold

    def _end_copy(self, hold: Hold, end_offset: int) -> None:
        """A copy is no longer the newest of a pending hold; it stays until that is durable."""
        self.changes += 1
        self.pending_bytes -= hold.size_bytes
        self._pins.pin(hold.offset, end_offset=end_offset)

    def _find_target(self, target: Target) -> Hold | None:
        if isinstance(target, bytes):
            return self.find_id(target)
        return self._open.find(target) or self._undecided.find(target)

    def _remember(self, target: Target, ending: HoldEnding) -> None:
        self._endings[target] = ending
        self._endings.move_to_end(target)
        if len(self._endings) > HOLD_ENDINGS_MAX:
            self._endings.popitem(last=False)

    # --- what is held ----------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """How many records are held, open and undecided ones."""
        return len(self._open) + len(self._undecided)

    @property
    def undecided(self) -> int:
        """How many wait for the end of their transaction."""
        return len(self._undecided)

    @property
    def schedule_count(self) -> int:
        return self._open.schedule_count

    def due(
        self, *, wall_ms: int, steady_ms: int, count_max: int, bytes_max: int
    ) -> Sequence[Hold]:
        """The open holds to deliver now, by due time and then ticket; at least one if any is due.

        They stay open: the release that is appended closes them.
        """
        found: list[Hold] = []
        size_bytes = 0
        for hold in self._open.due({Axis.WALL: wall_ms, Axis.STEADY: steady_ms}, count_max):
            size_bytes += hold.size_bytes
            if found and size_bytes > bytes_max:
                break
            found.append(hold)
        return found

    def next_due(self, axis: Axis) -> int | None:
        """The earliest due time of an axis."""
        return self._open.first_due(axis)

    def find(self, ticket: int) -> Hold | None:
        """The open hold of a ticket."""
        return self._open.find(ticket)

    def find_id(self, message_id: bytes) -> Hold | None:
        """The open hold with this id; of several the one with the highest copy."""
        return self._open.find_id(message_id)

    @property
    def shelf_count(self) -> int:
        """In how many places `find_id` searches."""
        return self._open.shelf_count

    def ending_of(self, target: Target) -> HoldEnding | None:
        """How the hold that a command names has ended, if that was not long ago."""
        return self._endings.get(target)

    def held(self, start: int = 0) -> Iterator[Hold]:
        """The open holds whose newest copy is at `start` or behind, by the offset of that copy.

        Read it before the next fold; who reads in parts goes on behind the last copy.
        """
        return self._open.held(start)

    def bytes_below(self, offset: int) -> Iterator[int]:
        """Bytes of the open holds whose copy is below `offset`: numbers to add, in short steps."""
        return self._open.bytes_below(offset)

    # --- what must stay, and what a cut takes back ------------------------------------------------

    def settle(self, durable_offset: int) -> None:
        """Everything below is durable on every in-sync replica: ends there are final."""
        self._pins.settle(durable_offset)

    def floor(self) -> int | None:
        """The oldest copy that must stay: of a pending hold, or of one whose end may be cut."""
        copies = self._open.oldest_copy(), self._undecided.oldest_copy(), self._pins.lowest()
        return min([copy for copy in copies if copy is not None], default=None)

    def replay_from(self, offset: int) -> int:
        """From which offset the log has to be folded again after a cut at `offset`."""
        if offset < self._pins.durable_offset:
            return 0  # the copies below the floor may be gone: everything that is left
        floor = self.floor()
        return offset if floor is None else min(offset, floor)

    def cut(self, offset: int) -> None:
        """The log was cut at `offset`: forget all. Ask `replay_from` before; fold from there."""
        start = self.replay_from(offset)
        self._next_serial = self._open.next_serial
        self._clear()
        self._pins.clear()
        self.newest_stamp_ms = 0
        self.next_offset = start

    # --- runs: what a large book keeps in files --------------------------------------------------

    def try_freeze(self) -> Spill | None:
        """The holds to write as a run, if there are enough of them in memory."""
        return self._open.try_freeze()

    def give_back(self, spill: Spill) -> None:
        """The run of a spill could not be written; `try_freeze` offers it again."""
        self._open.give_back(spill)

    def adopt(self, serial: int, data: memoryview) -> bool:
        """The run of a spill is in `data` now, a mapped file; False: nobody needs it any more."""
        return self._open.adopt(serial, data)

    def runs(self) -> list[int]:
        """The serials of the runs in use: the files of all others may go."""
        return self._open.runs()

    def capture(self) -> HoldCapture:
        """All that it knows, for a snapshot."""
        holds, strands, runs = self._open.captured()
        return HoldCapture(
            self.next_offset,
            self.newest_stamp_ms,
            self._pins.durable_offset,
            self.pending_bytes,
            holds,
            strands,
            runs,
            list(self._undecided),
            self._pins.captured(),
        )

    def restore(self, captured: HoldCapture, runs: Mapping[int, memoryview]) -> None:
        """Make an empty book what it was when it was captured; `runs` are the files it had then.

        ValueError if one of them is not what was captured; the book is worth nothing then.
        """
        self.next_offset = captured.next_offset
        self.newest_stamp_ms = captured.newest_stamp_ms
        self.pending_bytes = captured.pending_bytes
        self._open.restore(captured.holds, [(one, runs[one.serial]) for one in captured.runs])
        for producer_id, hold in captured.undecided:
            self._undecided.add(producer_id, hold)
        self._pins.restore(captured.pins, captured.durable_offset)
