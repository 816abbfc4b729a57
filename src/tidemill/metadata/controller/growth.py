"""Internal topics grow with the cluster: what coordinators know has as many copies as asked for.

A topic that was made while there was one broker has one replica. When brokers have joined, it gets
more, up to `offsets.topic.replication.factor` and `transaction.state.log.replication.factor`. Only
then: whoever gives such a topic fewer replicas later has a reason. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.core.balance import Assignment, resized, startable
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.ids import TopicPartition
from tidemill.metadata.controller.healing import assignment_of, moving_of, usable_racks
from tidemill.metadata.image.metadata_image import (
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    MetadataImage,
)
from tidemill.metadata.special_topics.internal_topics import internal_replicas

__all__ = ["growing_moves", "has_single_copy"]

_GROWING = (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)


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
