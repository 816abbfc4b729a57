"""Log lines about the ends of connections, at most one per client address and minute (S52)."""

from __future__ import annotations

import logging
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.logs import RateLimit, shown
from tidemill.core.telemetry import Telemetry

__all__ = ["ConnectionLog"]

log = logging.getLogger(__name__)


@final
class ConnectionLog:
    """Why connections were closed or refused; one listener's connections share the limit."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._limit = RateLimit()

    def note_closed(self, address: str, reason: str) -> None:
        if self._limit.allows(address, self._clock.monotonic()):
            log.warning("closed connection from %s: %s", shown(address), shown(reason))

    def note_bug(self, address: str, error: Exception) -> None:
        """A request ended in a bug of ours: count it and log its traceback."""
        self._telemetry.unhandled_errors += 1
        if self._limit.allows(address, self._clock.monotonic()):
            log.error("a request failed, its connection is closed", exc_info=error)
