"""What a topic allows its holds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__ = ["HoldPolicy"]

_DAY_MS = 24 * 3600 * 1000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HoldPolicy:
    """The topic keys `tidemill.delay.*`."""

    is_enabled: bool = True
    delay_max_ms: int = 400 * _DAY_MS
    pending_max: int = 10_000_000
    """Held records of a partition."""
    pending_bytes_max: int = 16 << 30
