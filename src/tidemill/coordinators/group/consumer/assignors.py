"""Which member gets which partition: the assignors of the consumer protocol (KIP-848).

An assignor sees the members with their previous targets, and the topics that exist. It returns a
new target for every member. If a member's target does not change, it returns the same object, so
that the caller can detect changed rows by identity.

`uniform` is sticky. Members keep their partitions, partitions without an owner go to the member
with the fewest, and then partitions move from the member with the most to the member with the
fewest until they differ by at most one. The partitions that the same members subscribe to form a
*pool*; members with different subscriptions make several pools, which are levelled in turn. With
one pool the result is as even as possible, and no partition moves without need. With several pools
a better plan may need a chain of moves through a third member; such chains are not searched for.

`range` gives each member a run of partition numbers. The run is the same in all topics of the same
size that the same members read, so that topics can be joined partition by partition. It is not
sticky.

One computation takes time in proportion to members plus partitions: about 1 ms for 500 of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType
from typing import NamedTuple, final
from uuid import UUID

__all__ = ["ASSIGNORS", "NOTHING", "Assignor", "Partitions", "Subscriber", "TopicShape"]

Partitions = Mapping[UUID, tuple[int, ...]]
"""Sorted partition numbers by topic; topics without any are left out. Never changed in place."""
NOTHING: Partitions = MappingProxyType({})

_NO_OWNER = -1
_ROUNDS_MAX = 8
"""Rounds over all pools: levelling one may unbalance another, but by less each time."""


class TopicShape(NamedTuple):
    """A topic as an assignor sees it."""

    topic_id: UUID
    partition_count: int


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    target: Partitions
    """Its previous target."""


Assignor = Callable[[Sequence[Subscriber], Mapping[str, TopicShape]], dict[str, Partitions]]


@final
class _Pool:
    """Topics that the same members subscribe to."""

    __slots__ = ("members", "topic_ids")

    def __init__(self, members: list[int]) -> None:
        self.members = members
        self.topic_ids: list[UUID] = []


@final
class _Plan:
    """A uniform assignment while it is computed; a member is its index in the sequence."""

    def __init__(self, subscribers: Sequence[Subscriber], topics: Mapping[str, TopicShape]) -> None:
        self._subscribers = subscribers
        self._topics = topics
        self._owners: dict[UUID, list[int]] = {}
        """The owner of each partition of each subscribed topic."""
        self._loads = [0] * len(subscribers)
        self._changed: dict[int, None] = {}
        """Members whose target has changed."""
        self._alike = _alike(subscribers)
        self._pools = self._make_pools()

    def _make_pools(self) -> list[_Pool]:
        readers: dict[str, list[int]] = {}
        alike = list(self._alike.values())
        for index, names in enumerate(self._alike):
            for name in names:
                if name in self._topics:
                    readers.setdefault(name, []).append(index)
        pools: dict[tuple[int, ...], _Pool] = {}
        for name in sorted(readers):
            key = tuple(readers[name])
            if key not in pools:
                pools[key] = _Pool([member for index in key for member in alike[index]])
            topic_id, count = self._topics[name]
            pools[key].topic_ids.append(topic_id)
            self._owners[topic_id] = [_NO_OWNER] * count
        return sorted(pools.values(), key=lambda pool: len(pool.members))

    def keep(self) -> None:
        """Let members keep their partitions that still exist and are still subscribed to."""
        for names, members in self._alike.items():
            wanted = {
                shape.topic_id: self._owners[shape.topic_id]
                for shape in map(self._topics.get, names)
                if shape is not None
            }
            for member in members:
                self._keep_of(member, wanted)

    def _keep_of(self, member: int, wanted: Mapping[UUID, list[int]]) -> None:
        for topic_id, partitions in self._subscribers[member].target.items():
            owners = wanted.get(topic_id)
            if owners is None:
                self._changed[member] = None
                continue
            for partition in partitions:
                if 0 <= partition < len(owners) and owners[partition] == _NO_OWNER:
                    owners[partition] = member
                    self._loads[member] += 1
                else:
                    self._changed[member] = None

    def fill(self) -> None:
        """Give partitions without an owner to the member with the fewest; small pools first."""
        for pool in self._pools:
            free = list(self._without_owner(pool))
            if not free:
                continue
            lightest = [(self._loads[member], member) for member in pool.members]
            heapify(lightest)
            for topic_id, partition in free:
                load, member = lightest[0]
                self._give(topic_id, partition, member)
                heapreplace(lightest, (load + 1, member))

    def _without_owner(self, pool: _Pool) -> Iterator[tuple[UUID, int]]:
        """Topic by topic: dealt out in this order, each member gets some of each topic."""
        for topic_id in pool.topic_ids:
            owners = self._owners[topic_id]
            if _NO_OWNER in owners:
                for partition, owner in enumerate(owners):
                    if owner == _NO_OWNER:
                        yield topic_id, partition

    def level(self) -> None:
        """Move partitions from the member with the most to the member with the fewest."""
        for _ in range(_ROUNDS_MAX):
            moved = [self._level_pool(pool) for pool in self._pools]
            if len(moved) == 1 or not any(moved):
                break

    def _level_pool(self, pool: _Pool) -> bool:
        loads = [self._loads[member] for member in pool.members]
        if max(loads) - min(loads) < 2:
            return False
        held = self._held(pool)
        lightest = list(zip(loads, pool.members, strict=True))
        heaviest = [(-self._loads[member], member) for member in held]
        heapify(lightest)
        heapify(heaviest)
        moved = False
        while heaviest and -heaviest[0][0] - lightest[0][0] >= 2:
            (negative, giver), (load, taker) = heaviest[0], lightest[0]
            partition, place = held[giver].pop()
            self._give(pool.topic_ids[place], partition, taker)
            self._loads[giver] -= 1
            self._changed[giver] = None
            moved = True
            heapreplace(lightest, (load + 1, taker))
            if held[giver]:
                heapreplace(heaviest, (negative + 1, giver))
            else:
                heappop(heaviest)
        return moved

    def _held(self, pool: _Pool) -> dict[int, list[tuple[int, int]]]:
        """The partitions of a pool by owner; the highest number is last and moves first."""
        held: dict[int, list[tuple[int, int]]] = {}
        for place, topic_id in enumerate(pool.topic_ids):
            for partition, owner in enumerate(self._owners[topic_id]):
                held.setdefault(owner, []).append((partition, place))
        if len(pool.topic_ids) > 1:
            for partitions in held.values():
                partitions.sort()
        return held

    def _give(self, topic_id: UUID, partition: int, member: int) -> None:
        self._owners[topic_id][partition] = member
        self._loads[member] += 1
        self._changed[member] = None

    def targets(self) -> dict[str, Partitions]:
        rows = {one.member_id: one.target for one in self._subscribers}
        new: dict[int, dict[UUID, tuple[int, ...]]] = {member: {} for member in self._changed}
        for topic_id, owners in self._owners.items():
            for member, partitions in _by_owner(owners, new).items():
                new[member][topic_id] = tuple(partitions)
        for member, target in new.items():
            rows[self._subscribers[member].member_id] = target
        return rows


def _alike(subscribers: Sequence[Subscriber]) -> dict[tuple[str, ...], list[int]]:
    """Members by their subscription."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for member, one in enumerate(subscribers):
        alike.setdefault(one.topics, []).append(member)
    return alike


def _by_owner(owners: list[int], wanted: Mapping[int, object]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for partition, member in enumerate(owners):
        if member in wanted:
            found.setdefault(member, []).append(partition)
    return found


def _assign_uniform(
    subscribers: Sequence[Subscriber], topics: Mapping[str, TopicShape]
) -> dict[str, Partitions]:
    plan = _Plan(subscribers, topics)
    plan.keep()
    plan.fill()
    plan.level()
    return plan.targets()


def _assign_range(
    subscribers: Sequence[Subscriber], topics: Mapping[str, TopicShape]
) -> dict[str, Partitions]:
    readers: dict[str, list[Subscriber]] = {}
    for one in sorted(subscribers, key=_range_order):
        for name in one.topics:
            if name in topics:
                readers.setdefault(name, []).append(one)
    new: dict[str, dict[UUID, tuple[int, ...]]] = {one.member_id: {} for one in subscribers}
    for name in sorted(readers):
        topic_id, count = topics[name]
        for one, run in zip(readers[name], _runs(count, len(readers[name])), strict=True):
            if run:
                new[one.member_id][topic_id] = tuple(run)
    return {
        one.member_id: one.target if one.target == new[one.member_id] else new[one.member_id]
        for one in subscribers
    }


def _range_order(one: Subscriber) -> tuple[bool, str]:
    """Static members first, by an id that survives a restart: a restart moves nothing."""
    return one.instance_id is None, one.instance_id or one.member_id


def _runs(count: int, parts: int) -> Iterator[range]:
    """0..count-1 in `parts` runs; the first ones are longer by one if it does not divide."""
    size, longer = divmod(count, parts)
    start = 0
    for part in range(parts):
        end = start + size + (part < longer)
        yield range(start, end)
        start = end


ASSIGNORS: Mapping[str, Assignor] = {"uniform": _assign_uniform, "range": _assign_range}
