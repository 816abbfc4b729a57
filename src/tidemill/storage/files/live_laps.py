"""Which laps of the journal a crash would replay: logs ask before they change a file."""

from __future__ import annotations

from typing import final

__all__ = ["LiveLaps"]


@final
class LiveLaps:
    """The laps from `oldest` on may still stand in the journal's files."""

    __slots__ = ("oldest",)

    def __init__(self) -> None:
        self.oldest = 1
        """Laps count from 1 on; a segment that was never journaled has lap 0."""
