"""HOT PATH. OffsetCommit requests and answers of the commonest shape, in one piece.

A consumer commits the partitions of one topic, without metadata, every few seconds; some do it
after every batch. As with `produce_fast`, the functions here know that one shape, in the flexible
versions, and answer None for any other: then the generated codec does the work. Tests hold both
against each other.

    group | generation i32 | member | instance or null | 1 topic | name or id | n partitions
    | index i32, offset i64, leader epoch i32, no metadata, no tags (n times) | 2 empty tag sections
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from tidemill.core.ids import ZERO_UUID
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidemill.wire.primitives import uuid_of

__all__ = ["try_encode_response", "try_read_request"]

FIRST_FLEXIBLE = 8
FIRST_WITH_TOPIC_IDS = 10

_ONE = 2  # a compact array's count is stored plus one
_SHORT = 0x80  # lengths below take one byte
_NO_TAGS_TWICE = b"\0\0"

_GENERATION = Struct(">i")
_PARTITION = Struct(">iqiBB")  # index, offset, leader epoch, metadata (0: null, 1: empty), tags
_ANSWER_HEAD = Struct(">iiBiB")  # frame length, correlation id, tags, throttle time, topics
_ANSWER_PARTITION = Struct(">ihB")  # index, error code, tags


def try_read_request(frame: memoryview, position: int, version: int) -> OffsetCommitRequest | None:
    """The request whose body starts at `position`, if it has the one shape."""
    if version < FIRST_FLEXIBLE:
        return None
    try:
        group_id, position = _text(frame, position)
        (generation,) = _GENERATION.unpack_from(frame, position)
        member_id, position = _text(frame, position + 4)
        instance_id = None
        if frame[position]:
            instance_id, position = _text(frame, position)
        else:
            position += 1
        if frame[position] != _ONE:
            return None
        topic, position = _topic(frame, position + 1, version)
        if topic is None or frame[position:] != _NO_TAGS_TWICE:
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


def _text(frame: memoryview, position: int) -> tuple[str, int]:
    """A string of up to 126 bytes, and where it ends; ValueError if it is null, long or cut."""
    end = position + frame[position]
    if not position < end < position + _SHORT or end > len(frame):
        raise ValueError("not a string of the one shape")
    return str(frame[position + 1 : end], "utf-8"), end


def _topic(
    frame: memoryview, position: int, version: int
) -> tuple[OffsetCommitRequestTopic | None, int]:
    name, topic_id = "", ZERO_UUID
    if version >= FIRST_WITH_TOPIC_IDS:
        topic_id = uuid_of(bytes(frame[position : position + 16]))
        position += 16
    else:
        name, position = _text(frame, position)
    count = frame[position] - 1
    position += 1
    end = position + count * _PARTITION.size
    if not 0 <= count < _SHORT - 1 or end > len(frame):
        return None, position
    partitions = []
    for index, offset, epoch, metadata, tags in _PARTITION.iter_unpack(frame[position:end]):
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
    count = len(topic.partitions)
    if version >= FIRST_WITH_TOPIC_IDS:
        identity = topic.topic_id.bytes
    else:
        name = topic.name.encode()
        identity = bytes((len(name) + 1 & 0xFF,)) + name
    if count >= _SHORT - 1 or len(identity) > _SHORT - 1:
        return None
    pack = _ANSWER_PARTITION.pack
    entries = [pack(one.partition_index, one.error_code, 0) for one in topic.partitions]
    body = b"".join((identity, bytes((count + 1,)), *entries, _NO_TAGS_TWICE))
    size = _ANSWER_HEAD.size - 4 + len(body)
    return _ANSWER_HEAD.pack(size, correlation_id, 0, response.throttle_time_ms, _ONE) + body
