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
        self._ids: dict[bytes, set[int]] = {}
        self._schedules: dict[int, None] = {}
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
            self._ids.setdefault(hold.message_id, set()).add(hold.ticket)
        if hold.schedule is not None:
            self._schedules[hold.ticket] = None

    def take(self, ticket: int) -> Hold | None:
        """Remove a hold."""
        hold = self._holds.pop(ticket, None)
        if hold is None:
            return None
        self._dues[hold.axis].drop(ticket)
        self._copies.drop(ticket)
        if hold.message_id is not None:
            tickets = self._ids[hold.message_id]
            tickets.remove(ticket)
            if not tickets:
                del self._ids[hold.message_id]
        if hold.schedule is not None:
            del self._schedules[ticket]
        if self._is_frozen:
            self.taken.append(ticket)
        return hold

    def schedules(self) -> list[Hold]:
        return [self._holds[ticket] for ticket in self._schedules]

    def freeze(self) -> list[Hold]:
        """Its holds, to be written by a thread; what is taken from now on is noted."""
        self._is_frozen = True
        return list(self._holds.values())

    def find(self, ticket: int) -> Hold | None:
        return self._holds.get(ticket)

    def find_id(self, message_id: bytes) -> list[Hold]:
        return [self._holds[ticket] for ticket in sorted(self._ids.get(message_id, ()))]

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
