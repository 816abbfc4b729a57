"""The Clock seam: the only place that reads the time.

Wall time stamps records and decides retention; it may jump. Monotonic time measures durations and
deadlines; it never goes back. Boot time is monotonic time that also runs while the machine sleeps:
leases are measured by it, because the store's clock does not sleep with us. None are mixed.
"""

from __future__ import annotations

import time
from typing import Protocol, final

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """The clocks of a broker."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as in record timestamps. May jump either way."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def boottime(self) -> float:
        """Seconds from an arbitrary start, sleep of the machine included; never goes back."""
        ...


@final
class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # The function itself, not a method around it: every request calls it twice.
    monotonic = staticmethod(time.monotonic)

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
