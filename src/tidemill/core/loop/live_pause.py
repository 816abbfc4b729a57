"""The pause of a background loop, as long as a dynamic key says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import final

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.live_config import LiveConfig

__all__ = ["LivePause"]


@final
class LivePause:
    """Sleeps for a configured time. If the time changes meanwhile, it counts from the start."""

    def __init__(self, live: LiveConfig, length_ms: Callable[[BrokerConfig], int]) -> None:
        self._live = live
        self._length_ms = length_ms
        self._changed = asyncio.Event()
        live.subscribe(self._changed.set)

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            self._changed.clear()
            left_s = started + self._length_ms(self._live.current) / 1000 - loop.time()
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                return
