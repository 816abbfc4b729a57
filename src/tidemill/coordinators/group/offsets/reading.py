"""Answering what a group has committed.

What was never committed is offset -1 with empty metadata and no error (T45); so is what was
committed to a topic that has gone, once another has its name (I34). A topic that this broker has
not heard of yet shows what is stored for it: saying "none" would make a consumer start over.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import final

from tidemill.coordinators.group.offsets.committed_offsets import CommittedOffset, TopicOffsets
from tidemill.core.errors import ErrorCode
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.generated.offset_fetch import (
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

__all__ = ["NO_OFFSET", "OffsetReading"]

NO_OFFSET = -1


@final
class OffsetReading:
    """One group's offsets, as they look against an image of the cluster."""

    def __init__(
        self,
        offsets: Mapping[str, TopicOffsets],
        image: MetadataImage,
        deleted: Container[bytes],
    ) -> None:
        self._offsets = offsets
        self._image = image
        self._deleted = deleted
        """Ids of topics whose offsets are about to go."""

    def named(self, wanted: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
        """The partitions that were asked for, of a topic that is named."""
        return OffsetFetchResponseTopics(
            name=wanted.name, partitions=self._read(wanted.name, wanted.partition_indexes)
        )

    def identified(self, wanted: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
        """The partitions that were asked for, of a topic that is given by its id."""
        topic = self._image.topic_by_id(wanted.topic_id)
        if topic is None:
            partitions = [_unknown_topic_id(index) for index in wanted.partition_indexes]
        else:
            partitions = self._read(topic.name, wanted.partition_indexes)
        return OffsetFetchResponseTopics(topic_id=wanted.topic_id, partitions=partitions)

    def all(self, *, by_id: bool) -> list[OffsetFetchResponseTopics]:
        """Everything that the group has committed, but for topics that cannot be named."""
        answers = (self._try_all_of_topic(name, by_id=by_id) for name in self._offsets)
        return [answer for answer in answers if answer is not None]

    def _try_all_of_topic(self, name: str, *, by_id: bool) -> OffsetFetchResponseTopics | None:
        shown = [entry for entry in self._read(name, self._offsets[name]) if _is_set(entry)]
        topic = self._image.topic(name)
        if not shown or (by_id and topic is None):
            return None
        if by_id and topic is not None:
            return OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=shown)
        return OffsetFetchResponseTopics(name=name, partitions=shown)

    def _read(self, name: str, indexes: Iterable[int]) -> list[OffsetFetchResponsePartitions]:
        committed = self._offsets.get(name, {})
        topic = self._image.topic(name)
        topic_id = None if topic is None else topic.topic_id.bytes
        return [self._partition(index, committed.get(index), topic_id) for index in indexes]

    def _partition(
        self, index: int, entry: CommittedOffset | None, topic_id: bytes | None
    ) -> OffsetFetchResponsePartitions:
        if entry is None or entry.topic_id in self._deleted:
            return _nothing(index)
        if topic_id is not None and not entry.belongs_to(topic_id):
            return _nothing(index)
        return OffsetFetchResponsePartitions(
            partition_index=index,
            committed_offset=entry.offset,
            committed_leader_epoch=entry.leader_epoch,
            metadata=entry.metadata,
        )


def _is_set(entry: OffsetFetchResponsePartitions) -> bool:
    return entry.committed_offset != NO_OFFSET


def _nothing(index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET)


def _unknown_topic_id(index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=NO_OFFSET,
        error_code=int(ErrorCode.UNKNOWN_TOPIC_ID),
    )
