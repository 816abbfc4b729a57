"""How far the mending of one log is: what is still to be looked at, when, and from whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment

__all__ = ["LOOK_INTERVAL_S", "MendProgress"]

LOOK_INTERVAL_S = 0.5
REST_S_MAX = 5.0
DAMAGED_EVERYWHERE_TRIES_MAX = 10
"""How often in a row all others must say that they lack the same, before it is given up."""


@final
@dataclass(slots=True)
class MendProgress:
    """Of a log with damage, or in doubt. A restart begins anew: only damage itself is stored."""

    doubtful: set[int] = field(default_factory=set)
    """Base offsets of segments to be checked."""
    tries: int = 0
    due_at: float = 0.0
    source: int | None = None
    """The replica whose compacted log this one becomes: it must not be a mixture of two."""
    _replaced: set[int] = field(default_factory=set)
    """Base offsets of segments that are that replica's already."""
    _damaged_everywhere: Counter[int] = field(default_factory=Counter)
    """Base offset of a segment -> how often in a row all others have said that they lack it too."""

    def postpone(self, now: float) -> None:
        self.due_at = now + min(REST_S_MAX, LOOK_INTERVAL_S * 2.0 ** min(self.tries, 10))
        self.tries += 1

    def segments(self, log: FilePartitionLog) -> list[Segment]:
        """What is to be looked at, oldest first."""
        found = [one for one in log.segments if self._concerns(one, log)]
        self.doubtful &= {one.base_offset for one in found}
        return found

    def _concerns(self, segment: Segment, log: FilePartitionLog) -> bool:
        if not segment.size_bytes and segment is log.segments.active:
            return False
        if segment.base_offset in self._replaced:
            return False
        return segment.base_offset in self.doubtful or any(
            one.start_offset < segment.next_offset and segment.base_offset < one.end_offset
            for one in log.damage.to_mend
        )

    def healed(self, log: FilePartitionLog, segment: Segment) -> None:
        """All its batches are valid."""
        log.damage.verified(segment.base_offset, segment.next_offset)
        self.settled(segment)

    def settled(self, segment: Segment) -> None:
        """Nothing is left to be done with it."""
        self.doubtful.discard(segment.base_offset)
        del self._damaged_everywhere[segment.base_offset]

    # --- damage that all replicas have ------------------------------------------------------------

    def is_lost(self, segment: Segment, *, lack_it_all: bool) -> bool:
        """Whether it is to be given up: all others have said often enough that they lack it too.

        Replicas that are behind, or are being moved, lack for a while what they will have.
        """
        said = self._damaged_everywhere[segment.base_offset] + 1 if lack_it_all else 0
        self._damaged_everywhere[segment.base_offset] = said
        return said >= DAMAGED_EVERYWHERE_TRIES_MAX

    # --- compacted logs ---------------------------------------------------------------------------

    def chosen(self, sources: Sequence[int]) -> list[int]:
        """The one that segments were taken from already; all, if there is none or it is gone."""
        if self.source in sources:
            return [one for one in sources if one == self.source]
        self._replaced.clear()
        return list(sources)

    def taken_over(self, log: FilePartitionLog, segment: Segment, source: int) -> bool:
        """Whether all closed segments are those of the other replica: only then they are whole."""
        self.source = source
        self._replaced.add(segment.base_offset)
        end_offset = log.segments.active.base_offset
        if any(self._concerns(one, log) for one in log.segments if one.is_closed):
            return False
        log.damage.verified(0, end_offset)
        self.doubtful.clear()
        self._replaced.clear()  # they are looked at again if they get damaged again
        return True
