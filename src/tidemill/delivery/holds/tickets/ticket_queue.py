"""Tickets in the order of a number: a due time, or the offset of a copy.

A heap whose entries may be out of date: a ticket that was dropped or moved leaves its entry behind,
which is thrown away when it comes to the top, or when such entries are more than half of the heap.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import final

__all__ = ["TicketQueue"]

_STALE_MIN = 64
"""A heap is not rebuilt for fewer entries that are out of date."""


@final
class TicketQueue:
    """Tickets and their numbers: the lowest number first, of equal ones the lowest ticket."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def put(self, ticket: int, number: int) -> None:
        """Add a ticket, or move it."""
        self._numbers[ticket] = number
        heappush(self._heap, (number, ticket))
        self._maybe_rebuild()

    def drop(self, ticket: int) -> None:
        del self._numbers[ticket]
        self._maybe_rebuild()

    def first(self) -> tuple[int, int] | None:
        """The lowest number and its ticket."""
        while self._heap:
            number, ticket = self._heap[0]
            if self._numbers.get(ticket) == number:
                return number, ticket
            heappop(self._heap)
        return None

    def until(self, highest: int, count_max: int) -> list[int]:
        """The first tickets, as far as their numbers are not above `highest`."""
        found: list[tuple[int, int]] = []
        while self._heap and len(found) < count_max and self._heap[0][0] <= highest:
            entry = heappop(self._heap)
            is_twice = bool(found) and found[-1] == entry  # moved away and back
            if self._numbers.get(entry[1]) == entry[0] and not is_twice:
                found.append(entry)
        for entry in found:
            heappush(self._heap, entry)
        return [ticket for _, ticket in found]

    def _maybe_rebuild(self) -> None:
        if len(self._heap) > 2 * len(self._numbers) + _STALE_MIN:
            self._heap = [(number, ticket) for ticket, number in self._numbers.items()]
            heapify(self._heap)
