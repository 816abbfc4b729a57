"""The states of a classic group, and what leads from one to the next.

The table is the only place that says so: `Rounds` refuses any other step, and the page in
docs/internals shows it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["TRANSITIONS", "ClassicState", "Transition", "may_follow"]


class ClassicState(Enum):
    """By the words that DescribeGroups uses (T44); `Dead` is said of groups that do not exist."""

    EMPTY = "Empty"
    """No members; committed offsets may remain."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Joining phase: JoinGroup requests are parked until everyone has sent one."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Sync phase: the generation has begun, its leader has yet to send the plan."""
    STABLE = "Stable"
    """The plan is in the log; members ask for their part of it, and work."""


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
    Transition(_PREPARING, "everyone joined, or the rebalance timeout passed", _COMPLETING),
    Transition(_PREPARING, "the last member went", _EMPTY),
    Transition(_COMPLETING, "the leader's plan is in the log", _STABLE),
    Transition(_COMPLETING, "a member came, went, changed or did not sync in time", _PREPARING),
    Transition(_COMPLETING, "the last member went", _EMPTY),
    Transition(_STABLE, "a member came, went, changed or did not sync in time", _PREPARING),
    Transition(_STABLE, "the leader joins again", _PREPARING),
    Transition(_STABLE, "a static member is back under a new id", _STABLE),
    Transition(_STABLE, "the last member went", _EMPTY),
)

_STEPS = frozenset((row.before, row.after) for row in TRANSITIONS)


def may_follow(before: ClassicState, after: ClassicState) -> bool:
    """Whether the table has a row for this step."""
    return (before, after) in _STEPS
