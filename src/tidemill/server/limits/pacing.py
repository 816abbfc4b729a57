"""Long requests take turns: costly work gives everybody else a slice of the loop (S11)."""

from __future__ import annotations

import asyncio
from typing import final

__all__ = ["Pacer"]


@final
class Pacer:
    """Counts the steps of one request and lets others run after every `steps_per_slice` of them."""

    __slots__ = ("_steps", "_steps_per_slice")

    def __init__(self, steps_per_slice: int) -> None:
        self._steps_per_slice = steps_per_slice
        self._steps = 0

    async def step(self) -> None:
        """Call it before each piece of work."""
        if self._steps and self._steps % self._steps_per_slice == 0:
            await asyncio.sleep(0)
        self._steps += 1
