"""Changes of finalized levels that a person asks for: checked, all of them or none. Pure.

A level is changed if every broker that the cluster knows supports the new one. A broker that runs
is asked by its registration. One that is away cannot be asked and may come back with any software:
it counts as unable until it is started or unregistered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.features.feature_levels import (
    BEFORE_FEATURES,
    LEVELS_STORED,
    TIDEMILL_VERSION,
    FinalizedLevels,
    Software,
)

__all__ = ["LevelChange", "LevelChangePlan", "Way", "planned_levels"]


class Way(Enum):
    """How a level may change, by Kafka's number for it (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@final
class LevelChange(NamedTuple):
    """One feature of a request."""

    name: str
    level: int
    way: Way


@final
@dataclass(slots=True)
class LevelChangePlan:
    """What becomes of a request."""

    after: FinalizedLevels
    """The same object if nothing changes, also because something was refused."""
    refusals: dict[str, KafkaError] = field(default_factory=dict)
    """By feature."""


def planned_levels(
    now: FinalizedLevels,
    changes: Sequence[LevelChange],
    *,
    own: Software,
    known: Mapping[int, Software | None],
    next_epoch: int,
) -> LevelChangePlan:
    """The levels after the changes, or why they are refused.

    `own` is the software of the controller. `known` are all brokers that the cluster knows; None:
    it is away.
    """
    plan = LevelChangePlan(now)
    levels = dict(now.levels)
    for change in changes:
        try:
            _check(change, now.level_of(change.name), own, known)
        except KafkaError as error:
            plan.refusals[change.name] = error
        levels[change.name] = change.level
    for change in changes:
        if change.name not in plan.refusals and not _can_be_stored(levels):
            detail = (
                f"{TIDEMILL_VERSION} {LEVELS_STORED} is needed first: without it no level is stored"
            )
            plan.refusals[change.name] = _refusal(change, detail)
    if not plan.refusals and levels != now.levels:
        plan.after = FinalizedLevels(levels, next_epoch)
    return plan


def _can_be_stored(levels: Mapping[str, int]) -> bool:
    return levels.get(TIDEMILL_VERSION, 0) >= LEVELS_STORED or levels == BEFORE_FEATURES.levels


def _check(
    change: LevelChange, level: int, own: Software, known: Mapping[int, Software | None]
) -> None:
    """KafkaError unless the change can be made."""
    if change.name not in own.ranges:
        raise _refusal(change, f"the controller runs {own.shown_version}, which does not know it")
    if change.level == level:
        return
    if not own.supports(change.name, change.level):
        supported = own.range_of(change.name)
        raise _refusal(change, f"the controller runs {own.shown_version}, which has {supported}")
    _check_way(change, level)
    for broker_id, software in sorted(known.items()):
        if software is None:
            raise _refusal(
                change,
                f"broker {broker_id} is away and may come back with an older version: start it, or "
                "unregister it if it is gone for good",
            )
        if not software.supports(change.name, change.level):
            raise _refusal(
                change,
                f"broker {broker_id} runs {software.shown_version}, which has "
                f"{software.range_of(change.name)}: upgrade it first, or stop and unregister it",
            )


def _check_way(change: LevelChange, level: int) -> None:
    if change.level > level and change.way is not Way.UPGRADE:
        raise _refusal(change, f"it is {level} now, so this is no downgrade")
    if change.level < level and change.way is Way.UPGRADE:
        raise _refusal(change, f"it is {level} now, and a downgrade was not asked for")
    if change.level < level and change.name == TIDEMILL_VERSION:
        raise _refusal(change, "what it has stored stays, so there is no way back")


def _refusal(change: LevelChange, why: str) -> KafkaError:
    detail = f"{change.name} cannot be {change.level}: {why}"
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, detail)
