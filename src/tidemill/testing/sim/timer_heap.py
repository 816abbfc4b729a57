"""What a simulated loop runs: handles, and those with a time in a heap, the next one first.

As in asyncio, a timer that is cancelled stays where it is until it comes up, or until most of them
are cancelled. Unlike there, the heap has pairs, so that times are compared without Python code, and
handles have no debug mode: an idle cluster does little else than make, cancel and run them.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Handle, TimerHandle
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, final

__all__ = ["RESOLUTION_S", "SWEPT_MIN", "SimHandle", "SimTimer", "TimerHeap"]

RESOLUTION_S = 1e-9
"""Timers that are due so soon are due now."""
SWEPT_MIN = 100
"""So few timers are not worth looking for cancelled ones among them."""


class _Queue(Protocol):
    def append(self, handle: SimTimer, /) -> object: ...


@final
class SimHandle(Handle):
    """What asyncio's own is, without its debug mode."""

    __slots__ = ()
    _repr = _source_traceback = None

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False


@final
class SimTimer(TimerHandle):
    """The same with a time; it is in a heap until that has come."""

    __slots__ = ("_heap",)
    _repr = _source_traceback = None

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: AbstractEventLoop,
        context: Context | None,
        heap: TimerHeap,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._when = when
        self._heap = heap
        self._scheduled = True
        heappush(heap.pairs, (when, self))

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._heap.cancelled += self._scheduled
            self.empty()

    def empty(self) -> None:
        """Free what it would call."""
        self._callback, self._args = _nothing, ()


@final
class TimerHeap:
    """Timers by time. A loop looks at both fields in every turn, and calls only if need be."""

    def __init__(self) -> None:
        self.pairs: list[tuple[float, SimTimer]] = []
        """A heap; the same list for ever."""
        self.cancelled = 0
        """How many of them are cancelled."""

    def drop_cancelled(self) -> None:
        """Drop the ones that would come up next, or all of them if they are many."""
        pairs = self.pairs
        if len(pairs) > SWEPT_MIN and 2 * self.cancelled > len(pairs):
            self._sweep()
            return
        while pairs and pairs[0][1].cancelled():
            self.cancelled -= 1
            heappop(pairs)[1]._scheduled = False

    def _sweep(self) -> None:
        for _, timer in self.pairs:
            if timer.cancelled():
                timer._scheduled = False
        self.pairs[:] = [pair for pair in self.pairs if not pair[1].cancelled()]
        heapify(self.pairs)
        self.cancelled = 0

    def move_due(self, now: float, ready: _Queue) -> None:
        """Queue all that are due."""
        pairs, end = self.pairs, now + RESOLUTION_S
        while pairs and pairs[0][0] < end:
            timer = heappop(pairs)[1]
            timer._scheduled = False
            ready.append(timer)

    def take_if(self, is_taken: Callable[[SimTimer], bool]) -> list[SimTimer]:
        """Those for which `is_taken` is true; they are not due any more."""
        taken = [pair for pair in self.pairs if is_taken(pair[1])]
        own = dict.fromkeys(map(id, taken))
        self.pairs[:] = [pair for pair in self.pairs if id(pair) not in own]
        heapify(self.pairs)
        return [timer for _, timer in taken]

    def put_back(self, timers: Iterable[SimTimer], *, later_s: float) -> None:
        """Timers that were taken are due again, later than they were."""
        for timer in timers:
            timer._when += later_s
        self.pairs += [(timer.when(), timer) for timer in timers if not timer.cancelled()]
        heapify(self.pairs)


def _nothing() -> None:
    """Takes the place of what will not be called."""
