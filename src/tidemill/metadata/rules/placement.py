"""Chooses brokers for the replicas of new partitions. Pure.

Each new partition goes to the least loaded brokers, counting what was placed just before: first a
leader (fewest leaderships, then fewest replicas), then followers (a rack without a replica of this
partition, then fewest replicas). Ties go to the lower id, so the same image always gives the same
answer. No broker ever holds two replicas of a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE, PARTITIONS_ENCODED_PER_SLICE
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image.metadata_image import BrokerImage, Delta, TopicImage
from tidemill.metadata.rules.decisions import usable_brokers

__all__ = ["ClusterLoad", "Load", "count_replicas", "place"]


@final
@dataclass(slots=True)
class Load:
    """The load of one broker by assignment: the first replica is the preferred leader."""

    leaders: int = 0
    replicas: int = 0


@final
class ClusterLoad:
    """The load of every broker that may be given more, updated by deltas."""

    def __init__(self) -> None:
        self._load: dict[int, Load] = {}

    def follow(self, delta: Delta) -> Steps[None]:
        """Update the load by a change of the image."""
        if delta.brokers_changed or delta.members_changed or delta.overrides_changed:
            usable = usable_brokers(delta.after)
            if usable != self._load.keys():
                self._load = {broker_id: Load() for broker_id in sorted(usable)}
                for topic in delta.after.topics.values():
                    yield from self._count(topic, 1)
                return
        names = [*delta.topics_changed, *(gone.name for gone in delta.topics_deleted)]
        for name in dict.fromkeys(names):
            yield from self._count(delta.before.topic(name), -1)
            yield from self._count(delta.after.topic(name), 1)

    def copy(self) -> dict[int, Load]:
        """The load by broker, to plan with."""
        return {
            broker_id: Load(leaders=load.leaders, replicas=load.replicas)
            for broker_id, load in self._load.items()
        }

    def _count(self, topic: TopicImage | None, sign: int) -> Steps[None]:
        partitions = () if topic is None else topic.own_partitions
        for first in range(0, len(partitions), PARTITIONS_ENCODED_PER_SLICE):
            if first:
                yield
            for partition in partitions[first : first + PARTITIONS_ENCODED_PER_SLICE]:
                count_replicas(self._load, partition.replicas, sign)


def count_replicas(load: Mapping[int, Load], replicas: Iterable[int], sign: int = 1) -> None:
    """Add one partition to the load, or remove it with `sign=-1`."""
    for position, broker_id in enumerate(replicas):
        if broker_id in load:
            load[broker_id].replicas += sign
            load[broker_id].leaders += sign if position == 0 else 0


def place(
    brokers: Mapping[int, BrokerImage],
    load: Mapping[int, Load],
    *,
    partitions: int,
    replication_factor: int,
) -> Steps[tuple[tuple[int, ...], ...]]:
    """Replicas for each new partition. They are added to `load`."""
    assert 1 <= replication_factor <= len(load)
    placed: list[tuple[int, ...]] = []
    while len(placed) < partitions:
        if placed:
            yield
        some = min(PARTITIONS_CHANGED_PER_SLICE, partitions - len(placed))
        placed += [_place_one(brokers, load, replication_factor) for _ in range(some)]
    return tuple(placed)


def _place_one(
    brokers: Mapping[int, BrokerImage], load: Mapping[int, Load], replication_factor: int
) -> tuple[int, ...]:
    leader = min(load, key=lambda one: (load[one].leaders, load[one].replicas, one))
    chosen = [leader]
    racks = {brokers[leader].rack}
    while len(chosen) < replication_factor:
        free = (one for one in load if one not in chosen)
        follower = min(free, key=lambda one: (brokers[one].rack in racks, load[one].replicas, one))
        chosen.append(follower)
        racks.add(brokers[follower].rack)
    count_replicas(load, chosen)
    return tuple(chosen)
