"""Which replicas to remake elsewhere, because their broker is gone or is to hold nothing. Pure.

A partition whose data is nowhere else is left alone: its broker may come back, and an empty copy
would be no help. So only partitions that have a leader now are moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from tidemill.core.balance import Assignment, startable, vacated
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MOVES_PER_BROKER_MAX, PLANNED_MOVES_MAX
from tidemill.metadata.controller.decisions import live_brokers, usable_brokers
from tidemill.metadata.controller.reassignment import is_waiting_to_forget
from tidemill.metadata.image.metadata_image import MetadataImage, PartitionImage

__all__ = ["assignment_of", "moving_of", "usable_racks", "vacating_moves"]


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


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    for name, topic in image.topics.items():
        for index, partition in enumerate(topic.own_partitions):
            yield TopicPartition(name, index), partition
