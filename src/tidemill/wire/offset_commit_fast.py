"""HOT PATH. OffsetCommit requests and answers of the most common shape, in one piece.

A consumer commits the partitions of one topic, without metadata, every few seconds; some do it
after every batch. As in `produce_fast`, the functions here know that one shape, in the flexible
versions, and return None for any other: then the generated codec does the work. Tests compare both.

    group | generation i32 | member | instance or null | 1 topic | name or id | n partitions
    | index i32, offset i64, leader epoch i32, no metadata, no tags (n times) | 2 empty tag sections
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final

from tidemill.core.ids import ZERO_UUID
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
)
from tidemill.wire.primitives import uuid_of

__all__ = ["try_encode_response", "try_read_request"]

FIRST_FLEXIBLE: Final = 8
FIRST_WITH_TOPIC_IDS: Final = 10

_ONE: Final = 2  # a compact array's count is stored plus one
_SHORT: Final = 0x80  # lengths below take one byte
_BODY_BYTES_MAX: Final = 4096  # more than this shape takes
_NO_TAGS_TWICE: Final = b"\0\0"

_GENERATION: Final = Struct(">i")
_PARTITION: Final = Struct(
    ">iqiBB"  # index, offset, leader epoch, metadata (0: null, 1: empty), tags
)
_ANSWER_HEAD: Final = Struct(">iiBiB")  # frame length, correlation id, tags, throttle time, topics
_ANSWER_PARTITION: Final = Struct(">ihB")  # index, error code, tags
_ANSWER_ONE: Final = Struct(
    ">Bihxxx"  # the only partition: count, index, error code, three tag sections
)


def try_read_request(frame: memoryview, position: int, version: int) -> OffsetCommitRequest | None:
    """The request whose body starts at `position`, if it has this shape."""
    if version < FIRST_FLEXIBLE or len(frame) - position > _BODY_BYTES_MAX:
        return None
    body = bytes(frame[position:])  # slices of bytes are cheaper than slices of a view
    try:
        group_id, position = _text(body, 0)
        (generation,) = _GENERATION.unpack_from(body, position)
        member_id, position = _text(body, position + 4)
        instance_id = None
        if body[position]:
            instance_id, position = _text(body, position)
        else:
            position += 1
        if body[position] != _ONE:
            return None
        topic, position = _topic(body, position + 1, version)
        if topic is None or body[position:] != _NO_TAGS_TWICE:
            return None
    except (IndexError, ValueError, StructError):
        return None
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[topic],
    )


def _text(body: bytes, position: int) -> tuple[str, int]:
    """A string of up to 126 bytes, and where it ends; ValueError if it is null, long or cut."""
    size = body[position]
    end = position + size
    if not 0 < size < _SHORT or end > len(body):
        raise ValueError("not a string of the common shape")
    return body[position + 1 : end].decode(), end


def _topic(body: bytes, position: int, version: int) -> tuple[OffsetCommitRequestTopic | None, int]:
    name, topic_id = "", ZERO_UUID
    if version >= FIRST_WITH_TOPIC_IDS:
        topic_id = uuid_of(body[position : position + 16])
        position += 16
    else:
        name, position = _text(body, position)
    count = body[position] - 1
    position += 1
    end = position + count * _PARTITION.size
    if not 0 <= count < _SHORT - 1 or end > len(body):
        return None, position
    partitions = []
    for index, offset, epoch, metadata, tags in _PARTITION.iter_unpack(body[position:end]):
        if metadata > 1 or tags:
            return None, position
        partitions.append(
            OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=epoch,
                committed_metadata="" if metadata else None,
            )
        )
    return OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=partitions), end


def try_encode_response(
    response: OffsetCommitResponse, version: int, correlation_id: int
) -> bytes | None:
    """The whole frame, if it answers for one topic with not too many partitions."""
    if version < FIRST_FLEXIBLE or len(response.topics) != 1:
        return None
    topic = response.topics[0]
    if version >= FIRST_WITH_TOPIC_IDS:
        identity = topic.topic_id.bytes
    else:
        name = topic.name.encode()
        identity = bytes((len(name) + 1 & 0xFF,)) + name
    if len(topic.partitions) >= _SHORT - 1 or len(identity) > _SHORT - 1:
        return None
    partitions = _answered_partitions(topic.partitions)
    size = _ANSWER_HEAD.size - 4 + len(identity) + len(partitions)
    head = _ANSWER_HEAD.pack(size, correlation_id, 0, response.throttle_time_ms, _ONE)
    return head + identity + partitions


def _answered_partitions(partitions: list[OffsetCommitResponsePartition]) -> bytes:
    """The count, the partitions, and the tag sections after the topic and the response."""
    if len(partitions) == 1:
        return _ANSWER_ONE.pack(_ONE, partitions[0].partition_index, partitions[0].error_code)
    pack = _ANSWER_PARTITION.pack
    entries = [pack(one.partition_index, one.error_code, 0) for one in partitions]
    return b"".join((bytes((len(entries) + 1,)), *entries, _NO_TAGS_TWICE))
