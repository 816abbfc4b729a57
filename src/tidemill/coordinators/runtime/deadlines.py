"""Deadlines that are moved far more often than they pass: sessions kept alive by heartbeats.

Moving a deadline to a later time is one assignment. Its heap entry stays at the old time; when that
entry reaches the top, it is pushed again at the new time. So a heartbeat costs no heap operation.
The heap holds one entry per key, plus stale entries of keys that were dropped or moved earlier.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar, final

__all__ = ["Deadlines"]

K = TypeVar("K", bound=Hashable)

_STALE_MIN: Final = 1_000
"""Stale entries that do not justify a clean-up."""


@final
class Deadlines(Generic[K]):
    """At most one deadline per key, in milliseconds of the caller's clock."""

    __slots__ = ("_at", "_count", "_heap")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0
        """Breaks ties, so that keys are never compared and equal deadlines keep their order."""

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def set(self, key: K, at_ms: int) -> None:
        """Set or move the key's deadline."""
        before = self._at.get(key)
        self._at[key] = at_ms
        if before is None or at_ms < before:
            self._push(at_ms, key)

    def drop(self, key: K) -> None:
        """Remove the key's deadline, if it has one."""
        self._at.pop(key, None)
        if len(self._heap) > 2 * len(self._at) + _STALE_MIN:
            self._heap = [entry for entry in self._heap if entry[2] in self._at]
            heapify(self._heap)

    def take_due(self, now_ms: int, count_max: int) -> list[K]:
        """Remove and return up to `count_max` keys whose deadline has passed, soonest first."""
        due: list[K] = []
        while len(due) < count_max:
            soonest = self.next_ms()
            if soonest is None or soonest > now_ms:
                break
            key = heappop(self._heap)[2]
            del self._at[key]
            due.append(key)
        return due

    def next_ms(self) -> int | None:
        """The soonest deadline; None if there is none."""
        heap = self._heap
        while heap:
            at_ms, _, key = heap[0]
            true_ms = self._at.get(key)
            if true_ms == at_ms:
                return at_ms
            heappop(heap)
            if true_ms is not None and true_ms > at_ms:
                self._push(true_ms, key)
        return None

    def _push(self, at_ms: int, key: K) -> None:
        self._count += 1
        heappush(self._heap, (at_ms, self._count, key))
