"""The two clocks of holds: a wall clock that is not believed at once, and a steady one. Pure.

`deliver-at` and schedules name dates, so they follow the wall clock. One that is set back makes a
delivery late. One that is suddenly ahead may be wrong, and what is delivered early cannot be taken
back: it must stand so for ten minutes before it is believed.

`delay-ms` is a duration. It is measured on the boot clock, from the stamp that a leader wrote into
the batch: steady time starts where the wall clock or the newest stamp in the log was when the
leadership began, whichever is later.
"""

from __future__ import annotations

from typing import final

__all__ = ["BelievedWall", "SteadyTime"]

JUMP_MS_MAX = 60_000
"""What a wall clock may gain on the boot clock at once and still be believed."""
DRIFT = 0.001
"""Besides, two good clocks drift apart by less than this share of the time that has passed."""
DOUBT_S = 600.0
"""How long a clock that gained more must stand so."""


@final
class BelievedWall:
    """The wall clock of one broker, as far as it is believed."""

    def __init__(self, *, wall_ms: int, boot_s: float) -> None:
        self._wall_ms = wall_ms
        self._boot_s = boot_s
        """What is expected of the wall clock follows from these two, and the boot clock."""
        self._doubted_since_s: float | None = None
        self._doubted_ahead_ms = 0
        """How far ahead the wall clock has stood at least, since it is doubted."""
        self.steps = 0
        """How often the wall clock was suddenly ahead."""

    def now_ms(self, *, wall_ms: int, boot_s: float) -> int:
        """The time to compare due times with, at these readings of the two clocks."""
        passed_ms = int((boot_s - self._boot_s) * 1000)
        expected_ms = self._wall_ms + passed_ms
        ahead_ms = wall_ms - expected_ms
        is_sudden = ahead_ms > JUMP_MS_MAX + DRIFT * passed_ms
        if is_sudden and self._is_doubted(ahead_ms, boot_s):
            return expected_ms
        self._doubted_since_s = None
        if is_sudden or ahead_ms < 0 or passed_ms >= DOUBT_S * 1000:
            # Else nothing new is expected: what it gains in small steps adds up.
            self._wall_ms, self._boot_s = wall_ms, boot_s
        return wall_ms

    def _is_doubted(self, ahead_ms: int, boot_s: float) -> bool:
        """Whether a clock that is so far ahead has not stood so for long enough."""
        since_s = self._doubted_since_s
        if since_s is None or ahead_ms > self._doubted_ahead_ms + JUMP_MS_MAX:
            since_s = self._doubted_since_s = boot_s
            self._doubted_ahead_ms = ahead_ms
            self.steps += 1
        self._doubted_ahead_ms = min(self._doubted_ahead_ms, ahead_ms)
        return boot_s - since_s < DOUBT_S


@final
class SteadyTime:
    """The steady time of one partition under one leader."""

    def __init__(self, *, wall_ms: int, newest_stamp_ms: int, boot_s: float) -> None:
        self._start_ms = max(wall_ms, newest_stamp_ms)
        self._boot_s = boot_s

    def now_ms(self, *, boot_s: float) -> int:
        return self._start_ms + int((boot_s - self._boot_s) * 1000)
