"""Wall clocks of brokers that somebody sets, by an hour or so, while holds wait.

A broker starts with the right time. One that is suddenly ahead is not believed for ten minutes, and
is set right before: so no step may make a delivery early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import SimWorld

__all__ = ["ClockSteps"]

STEPS_MS = (3_600_000, 3_600_000, 300_000, -1_000, -30_000, -3_600_000)
PAUSE_S_MAX = 12.0


class ClockSteps:
    """Sets clocks until `is_over`."""

    def __init__(self, world: SimWorld, brokers: Sequence[int]) -> None:
        self._world = world
        self._brokers = brokers
        self._rng = SeededRng(world.rng.below(1 << 62))
        self.done: list[str] = []

    async def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await asyncio.sleep(PAUSE_S_MAX * (1 + self._rng.below(8)) / 8)
            broker_id = self._brokers[self._rng.below(len(self._brokers))]
            step_ms = STEPS_MS[self._rng.below(len(STEPS_MS))]
            clock = self._world.clocks[broker_id]
            clock.jump_wall(step_ms)
            self.done.append(f"{self._world.loop.time():.3f} clock {broker_id} {step_ms}")
            await asyncio.sleep(PAUSE_S_MAX * (1 + self._rng.below(8)) / 8)
            clock.jump_wall(-step_ms)
