"""The tickets of one axis, by due time.

A heap whose entries may be out of date: a ticket that was dropped or moved leaves its entry behind,
which is thrown away when it comes to the top, or when such entries are more than half of the heap.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import final

__all__ = ["DueQueue"]

_STALE_MIN = 64
"""A heap is not rebuilt for fewer entries that are out of date."""


@final
class DueQueue:
    """Tickets and their due times: the earliest first, of equal ones the lowest ticket."""

    def __init__(self) -> None:
        self._due_ms: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._due_ms)

    def put(self, ticket: int, due_ms: int) -> None:
        """Add a ticket, or move it."""
        self._due_ms[ticket] = due_ms
        heappush(self._heap, (due_ms, ticket))
        self._maybe_rebuild()

    def drop(self, ticket: int) -> None:
        del self._due_ms[ticket]
        self._maybe_rebuild()

    def first_due(self) -> int | None:
        """The earliest due time."""
        while self._heap:
            due_ms, ticket = self._heap[0]
            if self._due_ms.get(ticket) == due_ms:
                return due_ms
            heappop(self._heap)
        return None

    def until(self, now_ms: int, count_max: int) -> list[tuple[int, int]]:
        """The first tickets that are due at `now_ms`: (due, ticket)."""
        found: list[tuple[int, int]] = []
        while self._heap and len(found) < count_max and self._heap[0][0] <= now_ms:
            entry = heappop(self._heap)
            is_twice = bool(found) and found[-1] == entry  # moved away and back
            if self._due_ms.get(entry[1]) == entry[0] and not is_twice:
                found.append(entry)
        for entry in found:
            heappush(self._heap, entry)
        return found

    def _maybe_rebuild(self) -> None:
        if len(self._heap) > 2 * len(self._due_ms) + _STALE_MIN:
            self._heap = [(due_ms, ticket) for ticket, due_ms in self._due_ms.items()]
            heapify(self._heap)
