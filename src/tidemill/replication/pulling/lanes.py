"""The two lanes in which a follower fetches from a leader, and which one a partition takes. Pure.

A partition that is far behind would fill every answer, and those that keep up would wait for it. So
it moves to a lane of its own, with larger pieces and pauses, until it has nearly caught up. Leaders
do not say how many bytes they have; the size of the last records and the leader's log end tell.
"""

from __future__ import annotations

from typing import Final

from tidemill.core.limits import MIB
from tidemill.replication.pulling.fetch_round import LaneLimits

__all__ = ["CATCH_UP", "HOT", "LANES", "LANE_LIMITS", "behind_bytes", "lane_for"]

HOT: Final = 0
CATCH_UP: Final = 1
LANES: Final = (HOT, CATCH_UP)
LANE_LIMITS: Final = (
    LaneLimits(partition_bytes=1 * MIB, answer_bytes=8 * MIB),
    LaneLimits(partition_bytes=8 * MIB, answer_bytes=8 * MIB),
)
FAR_BEHIND_BYTES: Final = 16 * MIB
NEARLY_CAUGHT_UP_BYTES: Final = 4 * MIB


def behind_bytes(*, leader_end: int, own_end: int, read_offsets: int, read_bytes: int) -> int:
    """About how many bytes the leader has after our log, judged by the records that just came."""
    if leader_end <= own_end or read_offsets <= 0:
        return 0
    return (leader_end - own_end) * read_bytes // read_offsets


def lane_for(lane: int, behind: int) -> int:
    """The lane for a partition that is in `lane` now and so many bytes behind."""
    if lane == HOT:
        return CATCH_UP if behind > FAR_BEHIND_BYTES else HOT
    return HOT if behind < NEARLY_CAUGHT_UP_BYTES else CATCH_UP
