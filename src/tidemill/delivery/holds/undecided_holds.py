"""Held records of transactions that are still open: they are no holds before the commit marker."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import final

from tidemill.delivery.holds.hold import Hold

__all__ = ["UndecidedHolds"]


@final
class UndecidedHolds:
    """By ticket, and by the producer whose marker decides."""

    def __init__(self) -> None:
        self._holds: OrderedDict[int, Hold] = OrderedDict()
        self._producers: dict[int, int] = {}
        self._tickets: dict[int, dict[int, None]] = {}
        """Of each producer, in the order of the log."""

    def __len__(self) -> int:
        return len(self._holds)

    def __iter__(self) -> Iterator[tuple[int, Hold]]:
        """Producer id and hold, in the order of the log."""
        for ticket, hold in self._holds.items():
            yield self._producers[ticket], hold

    def add(self, producer_id: int, hold: Hold) -> None:
        self._holds[hold.ticket] = hold
        self._producers[hold.ticket] = producer_id
        self._tickets.setdefault(producer_id, {})[hold.ticket] = None

    def find(self, ticket: int) -> Hold | None:
        return self._holds.get(ticket)

    def oldest_copy(self) -> int | None:
        """Holds come in the order of the log, and none is carried before it is decided."""
        return next((hold.offset for hold in self._holds.values()), None)

    def replace(self, hold: Hold) -> None:
        """The same ticket with another due time."""
        assert hold.ticket in self._holds
        self._holds[hold.ticket] = hold

    def take(self, ticket: int) -> Hold | None:
        """Remove one that was cancelled."""
        hold = self._holds.pop(ticket, None)
        if hold is None:
            return None
        producer_id = self._producers.pop(ticket)
        tickets = self._tickets[producer_id]
        del tickets[ticket]
        if not tickets:
            del self._tickets[producer_id]
        return hold

    def take_all(self, producer_id: int) -> list[Hold]:
        """Remove those of a transaction that has ended."""
        tickets = self._tickets.pop(producer_id, {})
        for ticket in tickets:
            del self._producers[ticket]
        return [self._holds.pop(ticket) for ticket in tickets]
