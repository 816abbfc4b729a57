"""Reads a group's committed offsets for OffsetFetch.

A partition without a committed offset gets -1, empty metadata and no error (T45). So does an offset
of a deleted topic whose name another topic has taken (I34). If the topic is not in this broker's
image yet, the stored offset is returned: answering "none" would make the consumer start over. A
client that asks for stable offsets must ask again while a transaction may still change one.
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
    """One group's offsets, checked against an image of the cluster."""

    def __init__(
        self,
        offsets: Mapping[str, TopicOffsets],
        image: MetadataImage,
        deleted: Container[bytes],
        unstable: Container[tuple[str, int]] = frozenset(),
    ) -> None:
        self._offsets = offsets
        self._image = image
        self._deleted = deleted
        """Ids of deleted topics whose offsets are hidden."""
        self._unstable = unstable
        """Topics and partitions whose offsets an open transaction may still change; empty for a
        client that does not ask for stable offsets."""

    def named(self, wanted: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
        """The requested partitions of a topic given by name."""
        return OffsetFetchResponseTopics(
            name=wanted.name, partitions=self._read(wanted.name, wanted.partition_indexes)
        )

    def identified(self, wanted: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
        """The requested partitions of a topic given by id."""
        topic = self._image.topic_by_id(wanted.topic_id)
        if topic is None:
            partitions = [_unknown_topic_id(index) for index in wanted.partition_indexes]
        else:
            partitions = self._read(topic.name, wanted.partition_indexes)
        return OffsetFetchResponseTopics(topic_id=wanted.topic_id, partitions=partitions)

    def all(self, *, by_id: bool) -> list[OffsetFetchResponseTopics]:
        """All offsets of the group, except those of topics that have no id to answer with."""
        answers = (self._try_all_of_topic(name, by_id=by_id) for name in self._offsets)
        return [answer for answer in answers if answer is not None]

    def _try_all_of_topic(self, name: str, *, by_id: bool) -> OffsetFetchResponseTopics | None:
        topic = self._image.topic(name)
        topic_id = None if topic is None else topic.topic_id.bytes
        shown = [
            _unstable_offset(index) if (name, index) in self._unstable else _committed(index, entry)
            for index, entry in self._offsets[name].items()
            if self._is_shown(entry, topic_id)
        ]
        if not shown or (by_id and topic is None):
            return None
        if by_id and topic is not None:
            return OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=shown)
        return OffsetFetchResponseTopics(name=name, partitions=shown)

    def _read(self, name: str, indexes: Iterable[int]) -> list[OffsetFetchResponsePartitions]:
        committed = self._offsets.get(name, {})
        topic = self._image.topic(name)
        topic_id = None if topic is None else topic.topic_id.bytes
        return [
            _unstable_offset(index)
            if (name, index) in self._unstable
            else self._partition(index, committed.get(index), topic_id)
            for index in indexes
        ]

    def _partition(
        self, index: int, entry: CommittedOffset | None, topic_id: bytes | None
    ) -> OffsetFetchResponsePartitions:
        if entry is None or not self._is_shown(entry, topic_id):
            return _nothing(index)
        return _committed(index, entry)

    def _is_shown(self, entry: CommittedOffset, topic_id: bytes | None) -> bool:
        """`topic_id`: of the topic that has the name now, None if it is not known."""
        if entry.topic_id in self._deleted:
            return False
        return topic_id is None or entry.belongs_to(topic_id)


def _committed(index: int, entry: CommittedOffset) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=entry.offset,
        committed_leader_epoch=entry.leader_epoch,
        metadata=entry.metadata,
    )


def _nothing(index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET)


def _unstable_offset(index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=NO_OFFSET,
        error_code=int(ErrorCode.UNSTABLE_OFFSET_COMMIT),
    )


def _unknown_topic_id(index: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=NO_OFFSET,
        error_code=int(ErrorCode.UNKNOWN_TOPIC_ID),
    )
