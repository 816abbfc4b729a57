"""Whether a client reads its answers: a slow reader is served, a stalled one is dropped (S9)."""

from __future__ import annotations

from typing import final

from tidemill.core.limits import WRITE_PROGRESS_BYTES_MIN

__all__ = ["ReadStall"]


@final
class ReadStall:
    """From the moment the kernel accepts no more answers until the client has read them."""

    __slots__ = ("_mark_bytes", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        """Since when the client has read too little; 0 while it reads."""
        self._mark_bytes = 0
        """Unsent bytes at that time."""

    @property
    def is_begun(self) -> bool:
        return self._since > 0.0

    def begin(self, unsent_bytes: int, now: float) -> None:
        self._since = now
        self._mark_bytes = unsent_bytes

    def end(self) -> None:
        self._since = 0.0

    def duration_s(self, now: float) -> float:
        return now - self._since if self._since else 0.0

    def exceeds(self, limit_s: float, unsent_bytes: int, now: float) -> bool:
        """Whether it has lasted too long; a client that has read 1 MiB gets the full time again."""
        if unsent_bytes + WRITE_PROGRESS_BYTES_MIN <= self._mark_bytes:
            self.begin(unsent_bytes, now)
        elif unsent_bytes > self._mark_bytes:
            self._mark_bytes = unsent_bytes
        return now - self._since > limit_s
