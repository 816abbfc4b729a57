"""A hold: a record that is kept and not yet delivered."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

__all__ = ["DUE_NEVER", "DUE_TO_BE_PLANNED", "Axis", "Hold"]

DUE_NEVER = (1 << 63) - 1
"""The due time of a hold whose request cannot be read: listed, cancelled, never delivered early."""

DUE_TO_BE_PLANNED = 0
"""The due time of a schedule that has none yet: at once, to be planned."""


class Axis(IntEnum):
    """The clock that a due time is compared with."""

    WALL = 0
    """`deliver-at` and schedules: a date."""
    STEADY = 1
    """`delay-ms`: a duration, which no change of the wall clock shortens."""


class Hold(NamedTuple):
    """A held record, without its bytes: those are in the log, at `offset`."""

    ticket: int
    """The offset that its producer was answered; it never changes."""
    due_ms: int
    axis: Axis
    offset: int
    """Of its newest copy: the ticket, until the hold is carried."""
    size_bytes: int
    """Of the record, uncompressed."""
    message_id: bytes | None = None
    schedule: str | None = None
    """A cron line: its ticks move the hold instead of ending it."""

    @property
    def needs_plan(self) -> bool:
        """Whether this is a schedule of which no leader has computed the first tick.

        The client's record has a cron line and no time. Replicas may have different tables of time
        zones, so only the leader reads it, and carries the hold with the due time that it found.
        One that was moved before has a time: after that tick it is planned like any other.
        """
        return self.schedule is not None and self.due_ms == DUE_TO_BE_PLANNED
