"""Deletes committed offsets for OffsetDelete: those of topics that no member subscribes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidemill.coordinators.group.offsets.committed_offsets import TopicOffsets
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Result
from tidemill.core.errors import ErrorCode
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

__all__ = ["Subscriptions", "delete_offsets"]


class Subscriptions(Protocol):
    """The topics that the members of a group read."""

    def subscribes_to(self, topic: str) -> bool: ...


def delete_offsets(
    request: OffsetDeleteRequest,
    group: Subscriptions,
    committed: Mapping[str, TopicOffsets],
    pending: Mapping[bytes, tuple[str, int]],
    image: MetadataImage,
) -> Result[OffsetDeleteResponse]:
    """The answer, one code per topic, and a tombstone for every offset that is there.

    An offset that is pending in a transaction is deleted too: the tombstone comes later in the log.
    """
    pending_keys = {name: key for key, name in pending.items()}
    records: list[CoordinatorRecord] = []
    topics: list[OffsetDeleteResponseTopic] = []
    for wanted in request.topics:
        code = _refusal(wanted.name, group, image)
        if code == ErrorCode.NONE:
            offsets = committed.get(wanted.name, {})
            for one in wanted.partitions:
                entry = offsets.get(one.partition_index)
                key = pending_keys.get((wanted.name, one.partition_index))
                key = key if entry is None else entry.key
                if key is not None:
                    records.append(CoordinatorRecord(key, None))
        topics.append(_answer(wanted, code))
    return Result(OffsetDeleteResponse(topics=topics), records)


def _refusal(topic: str, group: Subscriptions, image: MetadataImage) -> ErrorCode:
    if image.topic(topic) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.subscribes_to(topic) else ErrorCode.NONE


def _answer(wanted: OffsetDeleteRequestTopic, code: ErrorCode) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=wanted.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=int(code))
            for one in wanted.partitions
        ],
    )
