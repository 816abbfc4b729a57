"""Changes of partitions and topics as they are about to be written. Pure.

Each partition that changes takes the next partition epoch: proposals name the epoch that they are
based on (I14).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from tidemill.core.errors import invariant
from tidemill.core.ids import NO_LEADER
from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.metadata_image import (
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image.topic_keys import MIN_ISR
from tidemill.metadata.rules.election import PartitionChange

__all__ = ["altered_topic", "put_changes", "with_minimum_in_force"]


def put_changes(draft: ImageDraft, changes: Iterable[PartitionChange]) -> None:
    """Put the next states of partitions into the draft."""
    by_topic: dict[UUID, dict[int, PartitionImage]] = {}
    for change in changes:
        changed = _changed(change.before, change.after)
        by_topic.setdefault(change.topic_id, {})[change.partition] = changed
    for topic_id, partitions in by_topic.items():
        draft.put_partitions(topic_id, partitions)


def with_minimum_in_force(topic: TopicImage, *, may_fall: bool = False) -> TopicImage:
    """The topic with the min.insync.replicas that its configuration means on this broker.

    A default never lowers what is stored, unless it `may_fall`, because somebody says so of this
    topic: it is that of one broker, which may have been started alone, or with less care.

    The elr was decided under the old minimum (see election.py). Without a leader nothing was
    acknowledged since: whoever is in it still has everything. A view has none of its own.
    """
    minimum = topic.config.min_insync_replicas
    if MIN_ISR not in topic.overrides and not may_fall:
        minimum = max(minimum, topic.stored_min_isr)
    if topic.is_view or minimum == topic.stored_min_isr:
        return topic
    partitions = tuple(
        replace(one, elr=()) if one.elr and one.leader != NO_LEADER else one
        for one in topic.partitions
    )
    return replace(topic, stored_min_isr=minimum, partitions=partitions)


def altered_topic(before: TopicImage, after: TopicImage) -> Steps[TopicImage]:
    """`after`, which has at least as many partitions, with its partition epochs.

    Another minimum is a change of every partition: a proposal of a leader that does not know it
    must not be made, because who leaves by it would wrongly count as complete.
    """
    has_minimum = before.stored_min_isr == after.stored_min_isr
    kept: list[PartitionImage] = []
    for first in range(0, len(before.partitions), PARTITIONS_CHANGED_PER_SLICE):
        if first:
            yield
        some = slice(first, first + PARTITIONS_CHANGED_PER_SLICE)
        kept += [
            old if old == new and has_minimum else _changed(old, new)
            for old, new in zip(before.partitions[some], after.partitions[some], strict=False)
        ]
    added = after.partitions[len(before.partitions) :]
    return replace(after, partitions=(*kept, *added))


def _changed(before: PartitionImage, after: PartitionImage) -> PartitionImage:
    """The last check before a write (I11), and the next partition epoch."""
    rises = after.leader_epoch > before.leader_epoch
    invariant(rises or after.leader_epoch == before.leader_epoch, "a leader epoch went back")
    invariant(rises or after.leader == before.leader, "a new leader without a new epoch")
    invariant(after.leader == NO_LEADER or after.leader in after.isr, "a leader outside the isr")
    return replace(after, partition_epoch=before.partition_epoch + 1)
