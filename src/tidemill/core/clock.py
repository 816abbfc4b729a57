"""The Clock seam: the only place that asks what time it is.

Wall time stamps records and decides retention; it may jump. Monotonic time measures how long
something took or may still take; it never goes back. The two are never mixed.
"""

from __future__ import annotations

import time
from typing import Protocol, final

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the broker knows of time."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as printed on records. May jump either way."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


@final
class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # The function itself, without a frame of ours around it: every request asks twice.
    monotonic = staticmethod(time.monotonic)
