"""Long work on the event loop runs in slices: after each slice everything else gets a turn (S11).

This is the only module that yields with `asyncio.sleep(0)`; everything else calls it by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, final

from tidemill.core.loop.steps import Steps

__all__ = ["Pacer", "next_turn", "run_slices", "run_steps"]

_T = TypeVar("_T")


async def next_turn() -> None:
    """Let the loop run everything else that is ready, once."""
    await asyncio.sleep(0)


async def run_slices(run_slice: Callable[[], bool]) -> None:
    """Call `run_slice` once per turn until it returns True: all work is done."""
    while not run_slice():
        await next_turn()


async def run_steps(steps: Steps[_T]) -> _T:
    """Run one step per turn; what the work returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the generator returns
        await next_turn()


@final
class Pacer:
    """Ends the slice of one task after every `steps_per_slice` steps."""

    __slots__ = ("_steps", "_steps_per_slice")

    def __init__(self, steps_per_slice: int) -> None:
        self._steps_per_slice = steps_per_slice
        self._steps = 0
        """Steps of the current slice, each counted at its cost."""

    async def step(self, cost: int = 1) -> None:
        """Call it before each piece of work; a slice always has room for its first piece."""
        if self._steps and self._steps + cost > self._steps_per_slice:
            self._steps = 0
            await next_turn()
        self._steps += cost
