"""A bound on bytes per second: how long to wait after so many of them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

__all__ = ["NO_BOUND", "ByteRate"]

NO_BOUND: Final = 2**63 - 1
"""Kafka writes "no bound" as the largest number."""


@final
class ByteRate:
    """One budget for all who ask; `per_s` is read each time."""

    def __init__(self, per_s: Callable[[], int]) -> None:
        self._per_s = per_s
        self._free_at = 0.0
        """When what was taken so far is paid for."""

    @property
    def piece_bytes(self) -> int:
        """The most to take at once: whoever takes it waits a second, and hears of another rate."""
        return self._per_s()

    def take(self, size_bytes: int, now: float) -> float:
        """For how many seconds whoever took these bytes must take no more."""
        per_s = self._per_s()
        if per_s == NO_BOUND:
            return 0.0
        self._free_at = max(self._free_at, now) + size_bytes / per_s
        return self._free_at - now
