"""The epoch in which a member was given each of its partitions (KIP-1251).

A commit that was sent just before a rebalance arrives with an older member epoch. It is safe if the
partition has been the member's since that epoch: then no other member can have read it meanwhile
(I26). So every partition of a member has the epoch of its *assignment*, which is the epoch that the
member was in when it was told of the partition. A member that starts over (epoch 0) has said that
it owns nothing: all its partitions are new to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from tidemill.coordinators.group.consumer.assignors import Partitions
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.generated.offset_commit import OffsetCommitRequestTopic

__all__ = ["NO_EPOCHS", "Epochs", "check_older_epoch", "date_partitions"]

Epochs = Mapping[UUID, Mapping[int, int]]
"""The epoch of each partition's assignment, by topic and partition. Never changed in place."""
NO_EPOCHS: Epochs = {}


def date_partitions(*held: Partitions, before: Epochs, epoch: int) -> Epochs:
    """The epochs of all these partitions; those that are not in `before` get this one."""
    after: dict[UUID, dict[int, int]] = {}
    for partitions in held:
        for topic_id, numbers in partitions.items():
            known = before.get(topic_id, {})
            dated = after.setdefault(topic_id, {})
            dated.update((number, known.get(number, epoch)) for number in numbers)
    return after


def check_older_epoch(
    epoch: int, since: Epochs, topics: Iterable[OffsetCommitRequestTopic], image: MetadataImage
) -> None:
    """STALE_MEMBER_EPOCH unless every partition of a commit has been the member's since `epoch`."""
    for topic in topics:
        found = image.topics.get(topic.name) if topic.name else None
        dated = since.get(topic.topic_id if found is None else found.topic_id, {})
        for one in topic.partitions:
            given_in = dated.get(one.partition_index)
            if given_in is None or given_in > epoch:
                detail = f"partition {one.partition_index} was not the member's in epoch {epoch}"
                raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH, detail)
