"""Changes of topics and partitions as operations on the store. Pure.

Order matters, since a long list is split into several multis: partitions are made before the topic
node that makes them valid. Versions matter too: `altered_topic` and `changed_partition` return
images with the versions that the nodes have after the write, so that the image is updated without
reading the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tidemill.core.errors import invariant
from tidemill.core.ids import NO_LEADER
from tidemill.core.limits import COORD_MULTI_BYTES_MAX, COORD_OPS_PER_MULTI_MAX
from tidemill.metadata.controller.election import PartitionChange
from tidemill.metadata.image import nodes
from tidemill.metadata.image.metadata_image import PartitionImage, TopicImage
from tidemill.metadata.store.coord import Create, Op, Put, op_bytes

__all__ = [
    "alter_ops",
    "altered_topic",
    "change_op",
    "changed_partition",
    "create_ops",
    "in_multis",
]

_ROOM_FOR_THE_GUARD_BYTES = 1_024


def in_multis(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """Slices that fit into one multi together with its check of the term."""
    some: list[Op] = []
    size_bytes = _ROOM_FOR_THE_GUARD_BYTES
    for op in ops:
        size_bytes += op_bytes(op)
        if some and (
            len(some) == COORD_OPS_PER_MULTI_MAX - 1 or size_bytes > COORD_MULTI_BYTES_MAX
        ):
            yield some
            some, size_bytes = [], _ROOM_FOR_THE_GUARD_BYTES + op_bytes(op)
        some.append(op)
    if some:
        yield some


def create_ops(topic: TopicImage) -> list[Op]:
    """Make a topic and its partitions."""
    return [*_partition_creates(topic, 0), Create(nodes.topic_path(topic.name), _encoded(topic))]


def alter_ops(before: TopicImage, after: TopicImage) -> list[Op]:
    """Change a topic into `after`, which has at least as many partitions."""
    changed = [
        change_op(PartitionChange(before.topic_id, index, old, new))
        for index, (old, new) in enumerate(zip(before.partitions, after.partitions, strict=False))
        if old != new
    ]
    added = _partition_creates(after, len(before.partitions))
    return [*changed, *added, Put(nodes.topic_path(before.name), _encoded(after), before.version)]


def altered_topic(before: TopicImage, after: TopicImage) -> TopicImage:
    """`after` with its versions once `alter_ops` are written."""
    kept = [
        replace(new, partition_epoch=old.partition_epoch + 1) if old != new else old
        for old, new in zip(before.partitions, after.partitions, strict=False)
    ]
    added = after.partitions[len(before.partitions) :]
    return replace(after, partitions=(*kept, *added), version=before.version + 1)


def change_op(change: PartitionChange) -> Op:
    """Write a partition's next state on the condition that the last one is unchanged (I14)."""
    _check(change.before, change.after)
    path = nodes.partition_path(change.topic_id, change.partition)
    return Put(path, nodes.encode_partition(change.after), change.before.partition_epoch)


def changed_partition(change: PartitionChange) -> PartitionImage:
    """The partition with its version once `change_op` is written."""
    return replace(change.after, partition_epoch=change.before.partition_epoch + 1)


def _check(before: PartitionImage, after: PartitionImage) -> None:
    """The last check before a write (I11)."""
    rises = after.leader_epoch > before.leader_epoch
    invariant(rises or after.leader_epoch == before.leader_epoch, "a leader epoch went back")
    invariant(rises or after.leader == before.leader, "a new leader without a new epoch")
    invariant(after.leader == NO_LEADER or after.leader in after.isr, "a leader outside the isr")


def _partition_creates(topic: TopicImage, start: int) -> list[Op]:
    return [
        Create(nodes.partition_path(topic.topic_id, index), nodes.encode_partition(partition))
        for index, partition in enumerate(topic.partitions)
        if index >= start
    ]


def _encoded(topic: TopicImage) -> bytes:
    replicas = tuple(partition.replicas for partition in topic.partitions)
    return nodes.encode_topic(topic.topic_id, replicas, topic.overrides)
