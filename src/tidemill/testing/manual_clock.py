"""Clocks for tests: one that a test moves, one that runs with the simulated event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tidemill.core.errors import invariant

__all__ = ["WALL_START_MS", "ManualClock", "SimClock"]

WALL_START_MS = 1_700_000_000_000
MONOTONIC_START_S = 1_000.0
"""Not zero: code that takes 0.0 for "never" must not work by accident."""


@final
class ManualClock:
    """Time stands still until a test moves it."""

    def __init__(
        self, *, wall_ms: int = WALL_START_MS, monotonic: float = MONOTONIC_START_S
    ) -> None:
        self._wall_ms = wall_ms
        self._monotonic = monotonic
        self._slept_s = 0.0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._monotonic

    def boottime(self) -> float:
        return self._monotonic + self._slept_s

    def sleep_machine(self, seconds: float) -> None:
        """The machine sleeps: the monotonic clock stands still, the other two go on."""
        self._slept_s += seconds
        self._wall_ms += round(seconds * 1000)

    def advance(self, seconds: float) -> None:
        """Time passes, on all clocks."""
        invariant(seconds >= 0, "time does not go back; `jump_wall` is for a clock that was set")
        self._monotonic += seconds
        self._wall_ms += round(seconds * 1000)

    def jump_wall(self, milliseconds: int) -> None:
        """Set the wall clock, as an operator does; the monotonic clock stays."""
        self._wall_ms += milliseconds


@final
class SimClock:
    """One host's clocks: they run with the simulation's time, the wall clock at its own offset."""

    def __init__(self, time: Callable[[], float], *, wall_start_ms: int = WALL_START_MS) -> None:
        self._time = self.monotonic = self.boottime = time  # no call around it: brokers ask often
        self._wall_start_ms = wall_start_ms
        self._started = time()

    def wall_ms(self) -> int:
        return self._wall_start_ms + int((self._time() - self._started) * 1000)

    def jump_wall(self, milliseconds: int) -> None:
        """Set this host's wall clock, as an operator does; timers do not change."""
        self._wall_start_ms += milliseconds
