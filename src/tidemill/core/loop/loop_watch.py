"""Measures how late the event loop is: the delay that every task on it sees."""

from __future__ import annotations

import asyncio

from tidemill.core.clock import Clock
from tidemill.core.telemetry import Histogram

__all__ = ["watch_loop"]

INTERVAL_S = 0.05


async def watch_loop(clock: Clock, stalls: Histogram) -> None:
    """Sleep and record how late the wake-up was, forever."""
    while True:
        due = clock.monotonic() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        stalls.observe(max(0.0, clock.monotonic() - due))
