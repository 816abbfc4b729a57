"""What the controller does by itself, without a request and without a failure, and when. Pure.

| what                                         | when                                            |
|----------------------------------------------|-------------------------------------------------|
| replicas move off a broker that is drained   | at once, a few at a time                        |
| replicas of a broker that is gone are remade | after `replica.remake.delay.ms`, a few at a time|
| leaderships go back to the first replicas    | every five minutes, and soon after a broker has |
|                                              | come back                                       |
| replicas move from full to empty brokers     | the same, if `auto.rebalance` is set            |
| internal topics get more replicas            | when brokers have joined, a few at a time       |

Times are those of this controller: after a change of the controller a broker that is gone is waited
for anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from tidemill.core.balance import away_from_preferred, evened, startable
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import BALANCE_AFTER_RETURN_S, PLANNED_MOVES_MAX, UPKEEP_INTERVAL_S
from tidemill.metadata.controller.decisions import (
    draining_brokers,
    live_brokers,
    unhearing_brokers,
)
from tidemill.metadata.controller.healing import (
    assignment_of,
    growing_moves,
    has_single_copy,
    moving_of,
    usable_racks,
    vacating_moves,
)
from tidemill.metadata.image.metadata_image import Delta, MetadataImage

__all__ = ["ClusterUpkeep", "UpkeepPlan"]


@final
@dataclass(frozen=True, slots=True)
class UpkeepPlan:
    """What to do now."""

    moves: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    elections: list[TopicPartition] = field(default_factory=list)


@final
class ClusterUpkeep:
    """Remembers since when brokers are gone, and when something is to be looked at."""

    def __init__(self) -> None:
        self._gone_since: dict[int, float] = {}
        self._balance_at = 0.0
        self._vacate_at = 0.0
        """When replicas that must move are looked for again."""
        self._grows = False
        """Whether internal topics may lack replicas that they could have."""
        self._grow_at = 0.0

    def took_office(self, image: MetadataImage, config: BrokerConfig, now: float) -> None:
        self._gone_since = dict.fromkeys(_gone(image), now)
        self._balance_at = now + _soon_s(config)
        self._vacate_at = self._grow_at = now
        self._grows = has_single_copy(image)

    def follow(self, delta: Delta, config: BrokerConfig, now: float) -> None:
        image = delta.after
        if delta.brokers_changed or delta.members_changed:
            self._gone_since = {one: self._gone_since.get(one, now) for one in _gone(image)}
        if delta.members_changed:
            self._balance_at = min(self._balance_at, now + _soon_s(config))
            has_joined = bool(image.members.keys() - delta.before.members.keys())
            self._grows = self._grows or has_joined or has_single_copy(image)

    def due_at(self, image: MetadataImage, config: BrokerConfig, now: float) -> float:
        """When `plan` has something to look at again."""
        remake_s = config.replica_remake_delay_ms / 1000
        remade = [since + remake_s for since in self._gone_since.values()]
        times = [self._balance_at, *(one for one in remade if one > now)]
        if self._leaving(image, config, now):
            times.append(self._vacate_at)
        if self._grows:
            times.append(self._grow_at)
        return min(times)

    def plan(self, image: MetadataImage, config: BrokerConfig, now: float) -> UpkeepPlan:
        leaving = self._leaving(image, config, now)
        moves: dict[TopicPartition, tuple[int, ...]] = {}
        if leaving and now >= self._vacate_at:
            self._vacate_at = now + UPKEEP_INTERVAL_S
            moves = vacating_moves(image, leaving)
        if not moves and self._grows and now >= self._grow_at:
            self._grow_at = now + UPKEEP_INTERVAL_S
            moves, self._grows = growing_moves(image, config)
        if now < self._balance_at:
            return UpkeepPlan(moves)
        self._balance_at = now + config.leader_imbalance_check_interval_seconds
        if config.auto_rebalance and not leaving and not moves:
            assignment = assignment_of(image)
            plan = evened(assignment, usable_racks(image), moves_max=PLANNED_MOVES_MAX)
            moves = startable(plan, assignment, moving_of(image))
            if len(moves) < len(plan):
                self._balance_at = now + _soon_s(config)
        elections = _elections(image) if config.auto_leader_rebalance_enable else []
        return UpkeepPlan(moves, elections)

    def _leaving(self, image: MetadataImage, config: BrokerConfig, now: float) -> frozenset[int]:
        """Brokers that are to hold nothing."""
        longest_s = config.replica_remake_delay_ms / 1000
        gone = {one for one, since in self._gone_since.items() if now - since >= longest_s}
        return draining_brokers(image) | gone


def _gone(image: MetadataImage) -> frozenset[int]:
    """Brokers that hold replicas for nobody: not registered, not let in, or without a disk."""
    return frozenset(image.members) - live_brokers(image).brokers


def _soon_s(config: BrokerConfig) -> float:
    return min(BALANCE_AFTER_RETURN_S, config.leader_imbalance_check_interval_seconds)


def _elections(image: MetadataImage) -> list[TopicPartition]:
    """Partitions that their first replica should lead, and can; not those that are being moved."""
    electable = live_brokers(image).electable - unhearing_brokers(image)
    partitions = {
        TopicPartition(name, index): partition
        for name, topic in image.topics.items()
        for index, partition in enumerate(topic.own_partitions)
        if not partition.is_moving
    }
    away = away_from_preferred(
        {name: one.replicas for name, one in partitions.items()},
        {name: one.leader for name, one in partitions.items()},
    )
    return [
        name
        for name in away
        if (first := partitions[name].replicas[0]) in electable and first in partitions[name].isr
    ]
