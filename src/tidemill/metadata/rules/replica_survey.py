"""What a plan of moves must know of all partitions, from one look at the image. Pure.

`unread` are pages of the metadata that cannot be read now. What is known of their partitions
counts, but they cannot be changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import final

from tidemill.core.balancing.balance import ReplicaCounts
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import PARTITIONS_PLANNED_PER_SLICE
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image.metadata_image import MetadataImage, PartitionImage, TopicImage
from tidemill.metadata.image.page import page_of
from tidemill.metadata.rules.decisions import live_brokers

__all__ = ["ReplicaSurvey", "all_partitions", "is_unread"]


@final
@dataclass(frozen=True, slots=True)
class ReplicaSurvey:
    """All partitions but those of views, which are those of their bases."""

    assignment: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """Where the replicas are, or will be."""
    counts: ReplicaCounts = field(default_factory=ReplicaCounts)
    unled: set[TopicPartition] = field(default_factory=set)
    """They have no leader, perhaps for ever."""
    stuck: set[TopicPartition] = field(default_factory=set)
    """They have no leader, or are on a page that cannot be read: no move of one would end."""
    fixed: set[TopicPartition] = field(default_factory=set)
    """They are stuck, are being moved, or lack a replica now."""
    moving: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    """Who comes and who goes in the moves that copy now. Without a leader, or to a broker that is
    away, nothing is copied, perhaps for ever: such a move keeps no other from beginning."""

    @classmethod
    def of(cls, image: MetadataImage, unread: Collection[int] = ()) -> Steps[ReplicaSurvey]:
        survey, live = cls(), live_brokers(image).brokers
        for seen, (name, topic, partition) in enumerate(all_partitions(image), 1):
            if seen % PARTITIONS_PLANNED_PER_SLICE == 0:
                yield
            survey._add(name, partition, live, is_readable=not is_unread(topic, unread))
        return survey

    def _add(
        self,
        name: TopicPartition,
        partition: PartitionImage,
        live: frozenset[int],
        *,
        is_readable: bool,
    ) -> None:
        target = partition.target
        self.assignment[name] = target
        self.counts.add(target)
        if partition.leader not in live:
            self.unled.add(name)
        if partition.leader not in live or not is_readable:
            self.stuck.add(name)
            self.fixed.add(name)
        elif partition.is_moving or not live.issuperset(partition.replicas):
            self.fixed.add(name)
        if partition.is_moving and name not in self.stuck and _is_copying(partition, live):
            self.moving.append((partition.adding, partition.removing))


def _is_copying(partition: PartitionImage, live: frozenset[int]) -> bool:
    return any(one in live and one not in partition.isr for one in partition.target)


def all_partitions(
    image: MetadataImage,
) -> Iterator[tuple[TopicPartition, TopicImage, PartitionImage]]:
    for name, topic in image.topics.items():
        for index, partition in enumerate(topic.own_partitions):
            yield TopicPartition(name, index), topic, partition


def is_unread(topic: TopicImage, unread: Collection[int]) -> bool:
    return bool(unread) and page_of(topic.topic_id) in unread
