"""How late the event loop is: the delay that everyone on it sees."""

from __future__ import annotations

import asyncio

from tidemill.core.clock import Clock
from tidemill.core.telemetry import Histogram

__all__ = ["watch_loop"]

INTERVAL_S = 0.05


async def watch_loop(clock: Clock, stalls: Histogram) -> None:
    """Sleep, and note how much longer it took than asked, for ever."""
    while True:
        due = clock.monotonic() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        stalls.observe(max(0.0, clock.monotonic() - due))
