"""What waits for a partition: acknowledgements for an offset, fetches for more bytes. Pure.

A waiter is settled exactly once: by the mark it waits for, by an error of the partition, or by its
owner's deadline, whichever is first.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final

from tidemill.core.error_codes import ErrorCode

__all__ = ["AckWaiter", "OffsetWaiters", "Watcher"]

_UNSWEPT: Final = 100
"""Settled waiters that do not justify a sweep."""


class Watcher(Protocol):
    """A parked request: a partition wakes it when it may have more for it."""

    def wake(self) -> None:
        """Note that there may be more to read. Cheap; the reading happens later, once."""
        ...


@final
class AckWaiter:
    """One partition of one produce request that waits until a mark reaches `offset`."""

    __slots__ = ("_settle", "offset")

    def __init__(self, offset: int, settle: Callable[[ErrorCode], None]) -> None:
        self.offset = offset
        self._settle: Callable[[ErrorCode], None] | None = settle

    @property
    def settled(self) -> bool:
        return self._settle is None

    def settle(self, code: ErrorCode) -> None:
        """Answer with `code`, unless the waiter was answered before."""
        settle, self._settle = self._settle, None
        if settle is not None:
            settle(code)


@final
class OffsetWaiters:
    """Waiters in order of offset. Appends arrive in order; only a retry waits for an older one.

    Those that timed out are dropped when they are the first, and behind one that still waits when
    most are such: no more than twice as many are kept as waited at the last sweep, and a few.
    """

    __slots__ = ("_sweep_at", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[AckWaiter] = deque()
        self._sweep_at = _UNSWEPT
        """So many are looked through for settled ones: each is looked at once per waiter added."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiter: AckWaiter) -> None:
        waiting = self._waiting
        while waiting and waiting[0].settled:  # timed out: they must not pile up at a stuck mark
            waiting.popleft()
        if len(waiting) >= self._sweep_at:
            self._sweep()
        if not waiting or waiting[-1].offset <= waiter.offset:
            waiting.append(waiter)
        else:
            insort(waiting, waiter, key=lambda w: w.offset)

    def _sweep(self) -> None:
        """In place: whoever releases them may be the one who adds."""
        left = [waiter for waiter in self._waiting if not waiter.settled]
        self._waiting.clear()
        self._waiting.extend(left)
        self._sweep_at = 2 * len(left) + _UNSWEPT

    def release(self, mark: int) -> None:
        """The mark has reached `mark`: settle every waiter at or below it, in order."""
        waiting = self._waiting
        while waiting and waiting[0].offset <= mark:
            waiting.popleft().settle(ErrorCode.NONE)

    def fail(self, code: ErrorCode) -> None:
        """Settle every waiter with `code`: the partition cannot keep its promise."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            waiter.settle(code)
