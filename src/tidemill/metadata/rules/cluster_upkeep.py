"""What the controller does by itself, without a request and without a failure, and when. Pure.

| what                                         | when                                            |
|----------------------------------------------|-------------------------------------------------|
| replicas move off a broker that is drained   | at once, a few at a time                        |
| replicas of a broker that is gone are remade | after `replica.remake.delay.ms`, a few at a time|
| leaderships go back to the first replicas    | every five minutes, and soon after a broker has |
|                                              | come back                                       |
| internal topics get more replicas            | when brokers have joined, a few at a time       |
| a broker that has joined gets its share      | at once, a few at a time, after all of the above|
|                                              | moves, unless `auto.rebalance` is `off`         |
| replicas move from full to empty brokers     | with the leaderships, if it is `always`         |

Times are those of this controller: after a change of the controller a broker that is gone is waited
for anew. Who awaits a share is stored with the members, so the next controller goes on giving it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import final

from tidemill.core.balancing.balance import NO_SIZES, Sizes, away_from_preferred
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import (
    BALANCE_AFTER_RETURN_S,
    PARTITIONS_PLANNED_PER_SLICE,
    UPKEEP_INTERVAL_S,
)
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image.metadata_image import Delta, MetadataImage
from tidemill.metadata.rules.decisions import (
    draining_brokers,
    live_brokers,
    unhearing_brokers,
    usable_brokers,
)
from tidemill.metadata.rules.healing import (
    Moves,
    evening_moves,
    filling_moves,
    growing_moves,
    has_single_copy,
    vacating_moves,
)
from tidemill.metadata.rules.replica_survey import all_partitions

__all__ = ["ClusterUpkeep", "TrySizes", "UpkeepPlan"]

TrySizes = Callable[[], Sizes | None]
"""The sizes of logs, as far as they are known; None: wait a moment, they are being asked for."""


@final
@dataclass(frozen=True, slots=True)
class UpkeepPlan:
    """What to do now."""

    moves: Moves = field(default_factory=dict)
    elections: list[TopicPartition] = field(default_factory=list)
    have_share: frozenset[int] = frozenset()
    """Members that awaited their share and do not any more: they have it, or are drained."""


@final
class ClusterUpkeep:
    """Remembers since when brokers are gone, and when something is to be looked at."""

    def __init__(self, try_sizes: TrySizes = lambda: NO_SIZES) -> None:
        self._try_sizes = try_sizes
        self._gone_since: dict[int, float] = {}
        self._balance_at = 0.0
        self._move_at = 0.0
        """When replicas that must move are looked for again."""
        self._vacates = False
        """Whether brokers that are to hold nothing have replicas that others could hold."""
        self._grows = False
        """Whether internal topics may lack replicas that they could have."""
        self._growth_waits = False
        """Whether that is for brokers that are away, or partitions without a leader or a page."""
        self._fills = False
        """Whether something has changed since it was last seen what joined brokers lack."""
        self._unread: Collection[int] = ()
        """Pages of the metadata that cannot be read now: what is on them is in no plan."""

    def took_office(self, image: MetadataImage, config: BrokerConfig, now: float) -> None:
        self._gone_since = dict.fromkeys(_gone(image), now)
        self._balance_at = now + _soon_s(config)
        self._move_at = now
        self._vacates = False
        self._grows = has_single_copy(image)
        self._fills = True

    def follow(self, delta: Delta, config: BrokerConfig, now: float) -> None:
        image = delta.after
        self._fills = True
        if delta.brokers_changed or delta.members_changed or delta.overrides_changed:
            self._move_at = now
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
        if self._has_to_move(image, config, now):
            times.append(self._move_at)
        return min(times)

    def plan(
        self,
        image: MetadataImage,
        config: BrokerConfig,
        now: float,
        unread: Collection[int] = (),
    ) -> Steps[UpkeepPlan]:
        """What to do now; `unread` are pages of the metadata that cannot be read."""
        self._fills = self._fills or unread != self._unread
        self._unread = unread
        moves: Moves = {}
        have_share = frozenset[int]()
        if now >= self._move_at and self._has_to_move(image, config, now):
            self._move_at = now + UPKEEP_INTERVAL_S
            have_share = _awaiting(image) & draining_brokers(image)
            moves = yield from self._healing(image, config, now)
            if not moves and self._is_healed:
                moves, filled = yield from self._filling(image, config, now)
                have_share |= filled
        if now < self._balance_at:
            return UpkeepPlan(moves, have_share=have_share)
        self._balance_at = now + config.leader_imbalance_check_interval_seconds
        if config.auto_rebalance == "always" and not moves and self._is_healed:
            moves = yield from self._evening(image, config, now)
        elections: list[TopicPartition] = []
        if config.auto_leader_rebalance_enable:
            elections = yield from _elections(image)
        return UpkeepPlan(moves, elections, have_share)

    def _has_to_move(self, image: MetadataImage, config: BrokerConfig, now: float) -> bool:
        if self._grows or self._vacates or self._leaving(image, config, now):
            return True
        return self._fills and config.auto_rebalance != "off" and bool(_awaiting(image))

    def _healing(self, image: MetadataImage, config: BrokerConfig, now: float) -> Steps[Moves]:
        """The moves that go before all others."""
        leaving = self._leaving(image, config, now)
        moves: Moves = {}
        self._vacates = False
        if leaving:
            moves, self._vacates = yield from vacating_moves(image, leaving, self._unread)
        if not moves and self._grows:
            growth = yield from growing_moves(image, config, self._unread)
            moves, has_more, self._growth_waits = growth
            self._grows = has_more or self._growth_waits
        return moves

    def _filling(
        self, image: MetadataImage, config: BrokerConfig, now: float
    ) -> Steps[tuple[Moves, frozenset[int]]]:
        """The moves to brokers that have joined; who of them awaits nothing more."""
        joined = _awaiting(image) & usable_brokers(image)
        if not self._fills or config.auto_rebalance == "off":
            return {}, frozenset()
        sizes = self._try_sizes() if joined else NO_SIZES
        if sizes is None:
            return {}, frozenset()
        if not joined:
            self._fills = False
            return {}, frozenset()
        leaving = self._leaving(image, config, now)
        steps = filling_moves(image, joined, leaving, sizes, self._unread)
        moves, have_share = yield from steps
        self._fills = bool(moves)  # until they have begun; that is a change
        return moves, have_share

    def _evening(self, image: MetadataImage, config: BrokerConfig, now: float) -> Steps[Moves]:
        """The moves from full to empty brokers."""
        sizes = self._try_sizes()
        if sizes is None:
            self._balance_at = now + UPKEEP_INTERVAL_S
            return {}
        moves, has_more = yield from evening_moves(image, sizes, self._unread)
        if has_more:
            self._balance_at = now + _soon_s(config)
        return moves

    @property
    def _is_healed(self) -> bool:
        return not self._vacates and (not self._grows or self._growth_waits)

    def _leaving(self, image: MetadataImage, config: BrokerConfig, now: float) -> frozenset[int]:
        """Brokers that are to hold nothing."""
        longest_s = config.replica_remake_delay_ms / 1000
        gone = {one for one, since in self._gone_since.items() if now - since >= longest_s}
        return draining_brokers(image) | gone


def _gone(image: MetadataImage) -> frozenset[int]:
    """Brokers that hold replicas for nobody: not registered, not let in, or without a disk."""
    return frozenset(image.members) - live_brokers(image).brokers


def _awaiting(image: MetadataImage) -> frozenset[int]:
    """Brokers that have joined, and have not been given their share yet."""
    return frozenset(one.broker_id for one in image.members.values() if one.awaits_share)


def _soon_s(config: BrokerConfig) -> float:
    return min(BALANCE_AFTER_RETURN_S, config.leader_imbalance_check_interval_seconds)


def _elections(image: MetadataImage) -> Steps[list[TopicPartition]]:
    """Partitions that their first replica should lead, and can; not those that are being moved."""
    electable = live_brokers(image).electable - unhearing_brokers(image)
    assignment: dict[TopicPartition, tuple[int, ...]] = {}
    leaders: dict[TopicPartition, int] = {}
    electing = set[TopicPartition]()
    for seen, (name, _, partition) in enumerate(all_partitions(image), 1):
        if seen % PARTITIONS_PLANNED_PER_SLICE == 0:
            yield
        if not partition.is_moving:
            first = partition.replicas[0]
            assignment[name] = partition.replicas
            leaders[name] = partition.leader
            if partition.leader != first and first in electable and first in partition.isr:
                electing.add(name)
    away = yield from away_from_preferred(assignment, leaders)
    yield
    return [name for name in away if name in electing]
