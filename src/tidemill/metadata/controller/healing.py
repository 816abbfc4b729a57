"""Which replicas the controller makes by itself, so that nothing depends on one broker. Pure.

They are remade elsewhere if their broker is gone or is to hold nothing. A partition whose data is
nowhere else is left alone: its broker may come back, and an empty copy would be no help. So only
partitions that have a leader now are moved.

Internal topics grow with the cluster: one that was made while there was one broker has one replica.
When brokers have joined, it gets more, up to `offsets.topic.replication.factor` and
`transaction.state.log.replication.factor`. Only then: whoever gives such a topic fewer replicas
later has a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from tidemill.core.balance import Assignment, resized, startable, vacated
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MOVES_PER_BROKER_MAX, PLANNED_MOVES_MAX
from tidemill.metadata.controller.decisions import live_brokers, usable_brokers
from tidemill.metadata.controller.reassignment import is_waiting_to_forget
from tidemill.metadata.image.metadata_image import (
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    MetadataImage,
    PartitionImage,
)
from tidemill.metadata.special_topics.internal_topics import internal_replicas

__all__ = [
    "assignment_of",
    "growing_moves",
    "has_single_copy",
    "moving_of",
    "usable_racks",
    "vacating_moves",
]

_GROWING = (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)


def assignment_of(image: MetadataImage) -> dict[TopicPartition, tuple[int, ...]]:
    """Where the replicas of partitions that have a leader are, or will be."""
    live = live_brokers(image).brokers
    return {name: one.target for name, one in _partitions(image) if one.leader in live}


def usable_racks(image: MetadataImage) -> dict[int, str]:
    """The brokers that may be given replicas, with their racks."""
    return {one: image.brokers[one].rack for one in sorted(usable_brokers(image))}


def moving_of(image: MetadataImage) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Who comes and who goes in the moves that go on and still copy."""
    return [
        (one.adding, one.removing)
        for _, one in _partitions(image)
        if one.is_moving and not is_waiting_to_forget(one)
    ]


def vacating_moves(
    image: MetadataImage, leave: Collection[int]
) -> dict[TopicPartition, tuple[int, ...]]:
    """The moves off the brokers in `leave` that may begin now."""
    moving = moving_of(image)
    departing = Counter(one for _, removing in moving for one in removing)
    if all(departing[one] >= MOVES_PER_BROKER_MAX for one in leave):
        return {}  # most looks while a broker empties: a plan costs a look at all partitions
    assignment: Assignment = assignment_of(image)
    racks = usable_racks(image)
    plan = vacated(assignment, racks, sorted(leave), moves_max=PLANNED_MOVES_MAX)
    return startable(plan, assignment, moving)


def has_single_copy(image: MetadataImage) -> bool:
    """Whether the end of one broker would stop groups or transactions."""
    return any(
        len(partition.target) == 1
        for name in _GROWING
        if name in image.topics
        for partition in image.topics[name].partitions
    )


def growing_moves(
    image: MetadataImage, config: BrokerConfig
) -> tuple[dict[TopicPartition, tuple[int, ...]], bool]:
    """The moves that may begin now, and whether there are any at all."""
    whole = assignment_of(image)
    assignment = {name: replicas for name, replicas in whole.items() if name.topic in _GROWING}
    plan = dict(_plan(image, config, assignment))
    return startable(plan, assignment, moving_of(image) if plan else ()), bool(plan)


def _plan(
    image: MetadataImage, config: BrokerConfig, assignment: Assignment
) -> Iterator[tuple[TopicPartition, tuple[int, ...]]]:
    racks = usable_racks(image)
    for topic in _GROWING:
        factor = internal_replicas(topic, config, len(racks))
        for name, target in resized(assignment, racks, factor, topic).items():
            if len(target) > len(assignment[name]):
                yield name, target


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    for name, topic in image.topics.items():
        for index, partition in enumerate(topic.own_partitions):
            yield TopicPartition(name, index), partition
