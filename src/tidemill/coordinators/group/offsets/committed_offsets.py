"""The committed offsets of groups: how commits are checked, and the records that store them.

HOT PATH: a commit is one dict look-up per topic and partition, one packed value and one replayed
record. `CommittedOffset` keeps the bytes of its key, so the next commit does not encode them again
and its replay does not decode them.

An offset belongs to a topic id, not to a topic name: an offset of a deleted topic does not show up
for a later topic of the same name (I34). The offset is not checked against the log, whose leader is
usually another broker. Kafka accepts any value, and so does Tidemill: an offset beyond the end
makes the consumer reset by its own policy, and a negative one means whatever the client that
committed it takes it for (kafkajs: -1 the end, -2 the start; T46).

The offsets of a group are bounded by the partitions that exist: commits for other partitions are
refused, and offsets of deleted topics are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, final

from tidemill.coordinators.group.base.records import (
    decode_offset_value,
    encode_offset_value,
    offset_commit_key,
    try_decode_key,
)
from tidemill.coordinators.runtime.shard import CoordinatorRecord
from tidemill.core.errors import ErrorCode, invariant
from tidemill.core.ids import ZERO_UUID
from tidemill.metadata.image.metadata_image import MetadataImage, TopicImage
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidemill.wire.generated.offset_commit_record import OffsetCommitKey

__all__ = ["CommittedOffset", "OffsetStore", "TopicOffsets"]

_BYTES_PER_CHAR_MAX: Final = 4
_NO_TOPIC_ID: Final = ZERO_UUID.bytes
_NO_OFFSETS: Mapping[str, TopicOffsets] = {}


@final
class CommittedOffset:
    """A group's committed offset of one partition; the next commit changes it in place."""

    __slots__ = ("commit_ms", "key", "leader_epoch", "metadata", "offset", "topic_id")

    def __init__(self, key: bytes) -> None:
        self.key = key
        """The key of its record."""
        self.offset = -1
        self.leader_epoch = -1
        self.metadata = ""
        self.commit_ms = 0
        self.topic_id = _NO_TOPIC_ID
        """Sixteen bytes; zeros in records of brokers that did not write it."""

    def belongs_to(self, topic_id: bytes) -> bool:
        return self.topic_id == topic_id or self.topic_id == _NO_TOPIC_ID

    def tombstone(self) -> CoordinatorRecord:
        return CoordinatorRecord(self.key, None)


TopicOffsets = dict[int, CommittedOffset]
"""One group's offsets of one topic, by partition."""


@final
class OffsetStore:
    """All offsets of one shard. Only `replay` changes them."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, TopicOffsets]] = {}
        self._by_key: dict[bytes, CommittedOffset] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Topic, partition and offset of every committed offset."""
        for topics in self._groups.values():
            for topic, partitions in topics.items():
                for partition, committed in partitions.items():
                    yield topic, partition, committed.offset

    def of(self, group_id: str) -> Mapping[str, TopicOffsets]:
        """A group's offsets by topic; empty if it has none."""
        return self._groups.get(group_id, _NO_OFFSETS)

    def has_any(self, group_id: str) -> bool:
        return group_id in self._groups

    def count_of(self, group_id: str) -> int:
        return sum(map(len, self.of(group_id).values()))

    # --- replay ----------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> str | None:
        """Apply a record; return the group if an offset was added or deleted, not only changed."""
        entry = self._by_key.get(key)
        if value is None:
            return None if entry is None else self._remove(key)
        # Decode before anything changes: a damaged value must not leave a partial offset.
        taken = decode_offset_value(value)
        group_id = None
        if entry is None:
            entry, group_id = self._insert(key)
        entry.offset, entry.leader_epoch, entry.metadata, entry.commit_ms, entry.topic_id = taken
        return group_id

    def _insert(self, key: bytes) -> tuple[CommittedOffset, str]:
        name = _offset_key(key)
        entry = CommittedOffset(key)
        topics = self._groups.setdefault(name.group, {})
        topics.setdefault(name.topic, {})[name.partition] = entry
        self._by_key[key] = entry
        return entry, name.group

    def _remove(self, key: bytes) -> str:
        del self._by_key[key]
        name = _offset_key(key)
        topics = self._groups[name.group]
        partitions = topics[name.topic]
        del partitions[name.partition]
        if not partitions:
            del topics[name.topic]
        if not topics:
            del self._groups[name.group]
        return name.group

    # --- commits ---------------------------------------------------------------------------------

    def commit(
        self,
        request: OffsetCommitRequest,
        *,
        image: MetadataImage,
        metadata_bytes_max: int,
        now_ms: int,
    ) -> tuple[OffsetCommitResponse, list[CoordinatorRecord]]:
        """The response to a commit that the group has allowed, and the records for it."""
        records: list[CoordinatorRecord] = []
        known = self._groups.get(request.group_id, _NO_OFFSETS)
        answered = []
        for wanted in request.topics:
            topic = _try_topic(image, wanted)
            if topic is None:
                answered.append(_unknown_topic(wanted))
                continue
            commit = _TopicCommit(request.group_id, topic, known.get(topic.name), records)
            partitions = commit.accept(wanted.partitions, metadata_bytes_max, now_ms)
            answered.append(
                OffsetCommitResponseTopic(
                    name=wanted.name, topic_id=wanted.topic_id, partitions=partitions
                )
            )
        return OffsetCommitResponse(topics=answered), records


@final
class _TopicCommit:
    """The part of a commit for one topic."""

    __slots__ = ("_group_id", "_known", "_records", "_topic")

    def __init__(
        self,
        group_id: str,
        topic: TopicImage,
        known: TopicOffsets | None,
        records: list[CoordinatorRecord],
    ) -> None:
        self._group_id = group_id
        self._topic = topic
        self._known = known
        self._records = records

    def accept(
        self, wanted: list[OffsetCommitRequestPartition], metadata_bytes_max: int, now_ms: int
    ) -> list[OffsetCommitResponsePartition]:
        """The response for each partition; each accepted commit adds a record."""
        topic_id = self._topic.topic_id.bytes
        partition_count = len(self._topic.partitions)
        answered = []
        for one in wanted:
            index = one.partition_index
            metadata = one.committed_metadata or ""
            code = ErrorCode.NONE
            if not 0 <= index < partition_count:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif metadata and _is_too_large(metadata, metadata_bytes_max):
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                value = encode_offset_value(
                    one.committed_offset, one.committed_leader_epoch, metadata, now_ms, topic_id
                )
                self._records.append(CoordinatorRecord(self._key(index), value))
            answered.append(OffsetCommitResponsePartition(partition_index=index, error_code=code))
        return answered

    def _key(self, index: int) -> bytes:
        entry = None if self._known is None else self._known.get(index)
        if entry is not None:
            return entry.key
        return offset_commit_key(self._group_id, self._topic.name, index)


def _is_too_large(metadata: str, bytes_max: int) -> bool:
    if len(metadata) * _BYTES_PER_CHAR_MAX <= bytes_max:
        return False
    return len(metadata.encode()) > bytes_max


def _try_topic(image: MetadataImage, wanted: OffsetCommitRequestTopic) -> TopicImage | None:
    """From version 10 on the request gives only the topic's id."""
    if wanted.name:
        return image.topics.get(wanted.name)
    return image.topic_by_id(wanted.topic_id)


def _unknown_topic(wanted: OffsetCommitRequestTopic) -> OffsetCommitResponseTopic:
    by_name = wanted.topic_id == ZERO_UUID
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
    return OffsetCommitResponseTopic(
        name=wanted.name,
        topic_id=wanted.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in wanted.partitions
        ],
    )


def _offset_key(key: bytes) -> OffsetCommitKey:
    name = try_decode_key(key)
    invariant(isinstance(name, OffsetCommitKey), "an offset record with another kind of key")
    assert isinstance(name, OffsetCommitKey)
    return name
