"""Where the replicas of new partitions go. Pure.

Each new partition takes the brokers that have least to do, counting what was placed a moment ago:
first a leader (fewest leaderships, then fewest replicas), then followers (a rack that has none of
this partition yet, then fewest replicas). Ties go to the lower id, so the same image always gives
the same answer. No broker ever holds two replicas of a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from tidemill.metadata.image import BrokerImage, MetadataImage

__all__ = ["Load", "cluster_load", "place"]


@final
@dataclass(slots=True)
class Load:
    """What one broker is there for, by assignment: the first replica is the preferred leader."""

    leaders: int = 0
    replicas: int = 0


def cluster_load(image: MetadataImage) -> dict[int, Load]:
    """The load of every live broker."""
    load = {broker_id: Load() for broker_id in sorted(image.brokers)}
    for topic in image.topics.values():
        for partition in topic.partitions:
            count_replicas(load, partition.replicas)
    return load


def count_replicas(load: Mapping[int, Load], replicas: Iterable[int], sign: int = 1) -> None:
    """Add one partition to the load, or take it away again."""
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
) -> tuple[tuple[int, ...], ...]:
    """Replicas for each new partition. `load` is left as it will be with them in place."""
    assert 1 <= replication_factor <= len(load)
    return tuple(_place_one(brokers, load, replication_factor) for _ in range(partitions))


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
