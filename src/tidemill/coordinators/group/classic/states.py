"""The states of a classic group, and the transitions between them.

`TRANSITIONS` is the only definition: `Rounds` refuses any other transition, and the page in
docs/internals shows the table.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["TRANSITIONS", "ClassicState", "Transition", "may_follow"]


class ClassicState(Enum):
    """Named as in DescribeGroups (T44), which reports `Dead` for groups that do not exist."""

    EMPTY = "Empty"
    """No members; committed offsets may remain."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Joining phase: JoinGroup requests are parked until every member has sent one."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Sync phase: the generation has begun, its leader has not sent the plan yet."""
    STABLE = "Stable"
    """The plan is in the log; members fetch their assignments and work."""


class Transition(NamedTuple):
    """One row of the state table."""

    before: ClassicState
    event: str
    after: ClassicState


_EMPTY = ClassicState.EMPTY
_PREPARING = ClassicState.PREPARING_REBALANCE
_COMPLETING = ClassicState.COMPLETING_REBALANCE
_STABLE = ClassicState.STABLE

TRANSITIONS = (
    Transition(_EMPTY, "a first member joins", _PREPARING),
    Transition(_EMPTY, "a record with members is loaded", _STABLE),
    Transition(_PREPARING, "all members joined, or the rebalance timeout passed", _COMPLETING),
    Transition(_PREPARING, "the last member left", _EMPTY),
    Transition(_COMPLETING, "the leader's plan is in the log", _STABLE),
    Transition(_COMPLETING, "a member joined, left, changed or did not sync in time", _PREPARING),
    Transition(_COMPLETING, "the last member left", _EMPTY),
    Transition(_STABLE, "a member joined, left, changed or did not sync in time", _PREPARING),
    Transition(_STABLE, "the leader joins again", _PREPARING),
    Transition(_STABLE, "a static member returns under a new id", _STABLE),
    Transition(_STABLE, "the last member left", _EMPTY),
)

_STEPS = frozenset((row.before, row.after) for row in TRANSITIONS)


def may_follow(before: ClassicState, after: ClassicState) -> bool:
    """Whether the table has this transition."""
    return (before, after) in _STEPS
