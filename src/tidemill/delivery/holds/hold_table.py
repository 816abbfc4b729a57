"""Open holds in memory: those that were opened last, and schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.tickets.ticket_queue import TicketQueue

__all__ = ["HoldTable"]


@final
class HoldTable:
    """Holds by ticket, due time, copy and message id. A shelf (`hold_shelves`) that grows."""

    def __init__(self) -> None:
        self._holds: dict[int, Hold] = {}
        self._dues = {axis: TicketQueue() for axis in Axis}
        self._copies = TicketQueue()
        self._ids: dict[bytes, int | TicketQueue] = {}
        """The ticket with this id; of several those with the highest copies first."""
        self._schedules: dict[int, None] = {}
        self._schedule_ids: dict[bytes, dict[int, None]] = {}
        self._is_frozen = False
        self.taken: list[int] = []
        """The tickets that were taken since the table was frozen."""

    def __len__(self) -> int:
        return len(self._holds)

    @property
    def schedule_count(self) -> int:
        return len(self._schedules)

    def put(self, hold: Hold) -> None:
        """Add an open hold whose ticket is not here."""
        assert hold.ticket not in self._holds
        self._holds[hold.ticket] = hold
        self._dues[hold.axis].put(hold.ticket, hold.due_ms)
        self._copies.put(hold.ticket, hold.offset)
        if hold.message_id is not None:
            self._put_id(hold.message_id, hold)
        if hold.schedule is not None:
            self._schedules[hold.ticket] = None
            self._schedule_ids.setdefault(hold.message_id or b"", {})[hold.ticket] = None

    def take(self, ticket: int) -> Hold | None:
        """Remove a hold."""
        hold = self._holds.pop(ticket, None)
        if hold is None:
            return None
        self._dues[hold.axis].drop(ticket)
        self._copies.drop(ticket)
        if hold.message_id is not None:
            self._drop_id(hold.message_id, ticket)
        if hold.schedule is not None:
            del self._schedules[ticket]
            same_id = self._schedule_ids[hold.message_id or b""]
            del same_id[ticket]
            if not same_id:
                del self._schedule_ids[hold.message_id or b""]
        if self._is_frozen:
            self.taken.append(ticket)
        return hold

    def _put_id(self, message_id: bytes, hold: Hold) -> None:
        known = self._ids.get(message_id)
        if known is None:
            self._ids[message_id] = hold.ticket
            return
        if not isinstance(known, TicketQueue):
            several = self._ids[message_id] = TicketQueue()
            several.put(known, -self._holds[known].offset)
            known = several
        known.put(hold.ticket, -hold.offset)

    def _drop_id(self, message_id: bytes, ticket: int) -> None:
        known = self._ids[message_id]
        if isinstance(known, TicketQueue):
            known.drop(ticket)
            if len(known):
                return
        del self._ids[message_id]

    def schedules(self) -> list[Hold]:
        return [self._holds[ticket] for ticket in self._schedules]

    def freeze(self) -> list[Hold]:
        """Its holds, to be written by a thread; what is taken from now on is noted."""
        self._is_frozen = True
        return list(self._holds.values())

    def find(self, ticket: int) -> Hold | None:
        return self._holds.get(ticket)

    def find_id(self, message_id: bytes) -> Hold | None:
        known = self._ids.get(message_id)
        if isinstance(known, TicketQueue):
            first = known.first()
            known = None if first is None else first[1]
        return None if known is None else self._holds[known]

    def schedules_of(self, message_id: bytes) -> list[Hold]:
        """The schedules with this id: one, since the next takes its place."""
        return [self._holds[ticket] for ticket in self._schedule_ids.get(message_id, ())]

    def first_due(self, axis: Axis) -> tuple[int, int] | None:
        return self._dues[axis].first()

    def due(self, axis: Axis, now_ms: int, count_max: int) -> Iterator[Hold]:
        for ticket in self._dues[axis].until(now_ms, count_max):
            yield self._holds[ticket]

    def oldest_copy(self) -> int | None:
        first = self._copies.first()
        return None if first is None else first[0]

    def held(self, start: int) -> Iterator[Hold]:
        """Those whose copy is at `start` or behind, by copy."""
        found = [hold for hold in self._holds.values() if hold.offset >= start]
        yield from sorted(found, key=lambda hold: hold.offset)

    def bytes_below(self, offset: int) -> int:
        return sum([hold.size_bytes for hold in self._holds.values() if hold.offset < offset])
