"""An event loop whose time jumps to the next deadline instead of waiting for it.

For coroutines that use neither sockets nor threads: a timeout of thirty seconds takes no time, and
the order of events is the same in every run. A deadlock is an error, not a hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.support.coroutines import run

T = TypeVar("T")


class AllTasksAreBlocked(AssertionError):
    """No event is left that could wake a waiting coroutine."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise AllTasksAreBlocked
        self.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on virtual time."""
    return run(work, VirtualTimeLoop)
