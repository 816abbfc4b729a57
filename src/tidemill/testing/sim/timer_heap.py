"""The timers of a simulated loop, the next one first.

As in asyncio, a timer that is cancelled stays where it is until it comes up, or until most of them
are cancelled. Unlike there, the heap has pairs, so that times are compared without Python code: an
idle cluster does little else.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import final

__all__ = ["TimerHeap"]

RESOLUTION_S = 1e-9
"""Timers that are due so soon are due now."""
SWEPT_MIN = 100
"""So few timers are not worth looking for cancelled ones among them."""


@final
class TimerHeap:
    """Timers by time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, TimerHandle]] = []
        self._cancelled = 0

    def add(self, timer: TimerHandle) -> None:
        heappush(self._heap, (timer.when(), timer))
        _set_waiting(timer, True)

    def was_cancelled(self, timer: TimerHandle) -> None:
        self._cancelled += _is_waiting(timer)

    def drop_cancelled(self) -> None:
        """Drop the ones that would come up next, or all of them if they are many."""
        heap = self._heap
        if len(heap) > SWEPT_MIN and 2 * self._cancelled > len(heap):
            self._sweep()
            return
        while heap and heap[0][1].cancelled():
            self._cancelled -= 1
            _set_waiting(heappop(heap)[1], False)

    def _sweep(self) -> None:
        for _, timer in self._heap:
            if timer.cancelled():
                _set_waiting(timer, False)
        self._heap = [pair for pair in self._heap if not pair[1].cancelled()]
        heapify(self._heap)
        self._cancelled = 0

    def next_at(self) -> float | None:
        """When the next one is due."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> Iterator[TimerHandle]:
        heap, end = self._heap, now + RESOLUTION_S
        while heap and heap[0][0] < end:
            _, timer = heappop(heap)
            _set_waiting(timer, False)
            yield timer

    def take_if(self, is_taken: Callable[[TimerHandle], bool]) -> list[TimerHandle]:
        """Those for which `is_taken` is true; they are not due any more."""
        taken = [pair for pair in self._heap if is_taken(pair[1])]
        own = dict.fromkeys(map(id, taken))
        self._heap = [pair for pair in self._heap if id(pair) not in own]
        heapify(self._heap)
        return [timer for _, timer in taken]

    def put_back(self, timers: Iterable[TimerHandle], *, later_s: float) -> None:
        """Timers that were taken are due again, later than they were."""
        for timer in timers:
            timer._when += later_s  # type: ignore[attr-defined]  # asyncio has no other way
        self._heap += [(timer.when(), timer) for timer in timers if not timer.cancelled()]
        heapify(self._heap)


def _set_waiting(timer: TimerHandle, is_waiting: bool) -> None:
    timer._scheduled = is_waiting  # type: ignore[attr-defined]  # where asyncio looks, too


def _is_waiting(timer: TimerHandle) -> bool:
    waiting: bool = timer._scheduled  # type: ignore[attr-defined]
    return waiting
