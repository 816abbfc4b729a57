"""The records of `__consumer_offsets`, in Kafka's own format, so that its tools can read them.

A key is an int16 for the kind of record and a body in version 0. A value is an int16 version and a
body in that version. A record without a value deletes what its key names. Unknown kinds are
skipped, as in Kafka: a newer broker may have written them.

HOT PATH: offset commits come by the thousand per second, so their most common form is packed and
unpacked in one call: 0.2 to 0.3 us to write a value, 0.6 to read it, against about 3 us each with
the generated class (`timeit`, CPython 3.11). The tests hold both to the same bytes.

    int16   version, 4
    int64   offset
    int32   leader epoch, -1 if the consumer gave none
    uvarint length of the metadata plus one, then its bytes; here 1 and no bytes
    int64   commit time
    3 bytes one tagged field: number 0, 16 bytes
    uuid    the topic's id, which tells it from a later topic of the same name (I34)
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from tidemill.coordinators.runtime.shard import CoordinatorRecord
from tidemill.core.errors import ProtocolViolation
from tidemill.wire.generated.consumer_group_current_member_assignment_record import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from tidemill.wire.generated.consumer_group_member_metadata_record import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from tidemill.wire.generated.consumer_group_metadata_record import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from tidemill.wire.generated.consumer_group_regular_expression_record import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from tidemill.wire.generated.consumer_group_target_assignment_member_record import (
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
)
from tidemill.wire.generated.consumer_group_target_assignment_metadata_record import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from tidemill.wire.generated.group_metadata_record import GroupMetadataKey, GroupMetadataValue
from tidemill.wire.generated.offset_commit_record import OffsetCommitKey, OffsetCommitValue
from tidemill.wire.message import Message
from tidemill.wire.primitives import Reader, Writer, uuid_of

__all__ = [
    "GROUP_METADATA_VERSION",
    "OFFSET_COMMIT_VERSION",
    "OffsetValue",
    "decode_offset_value",
    "decode_value",
    "encode_key",
    "encode_offset_value",
    "encode_record",
    "encode_tombstone",
    "group_metadata_record",
    "group_metadata_tombstone",
    "is_offset_key",
    "offset_commit_key",
    "try_decode_key",
]

GROUP_METADATA_VERSION: Final = 3
OFFSET_COMMIT_VERSION: Final = 4
"""The first version with a topic id."""

_TYPE: Final = Struct(">h")
_PARTITION: Final = Struct(">i")
_OFFSET_KEY_PREFIX: Final = _TYPE.pack(OffsetCommitKey.record_type)
_TOPIC_ID_TAG: Final = b"\x01\x00\x10"
_NO_METADATA: Final = 1
_PLAIN_OFFSET: Final = Struct(">hqiBq3s16s")

_KINDS: dict[int, tuple[type[Message], type[Message]]] = {
    1: (OffsetCommitKey, OffsetCommitValue),
    2: (GroupMetadataKey, GroupMetadataValue),
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
}
_VALUES: dict[type[Message], type[Message]] = dict(_KINDS.values())


class OffsetValue(NamedTuple):
    """The content of an offset record."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    topic_id: bytes
    """Sixteen bytes; zeros in records of brokers that did not write it."""


# --- all kinds -----------------------------------------------------------------------------------


def encode_record(key: Message, value: Message | None, version: int) -> CoordinatorRecord:
    """A record ready to append; without a value, a tombstone."""
    if value is None:
        return CoordinatorRecord(encode_key(key), None)
    return CoordinatorRecord(encode_key(key), _encode(version, value, version))


def encode_tombstone(key: Message) -> CoordinatorRecord:
    """The record that deletes what the key names."""
    return CoordinatorRecord(encode_key(key), None)


def encode_key(key: Message) -> bytes:
    return _encode(key.record_type, key, 0)  # type: ignore[attr-defined]  # keys have one


def _encode(head: int, body: Message, version: int) -> bytes:
    writer = Writer()
    writer.buf += _TYPE.pack(head)
    body.write(writer, version)
    return bytes(writer.buf)


def try_decode_key(raw: bytes) -> Message | None:
    """The key; None if its kind is unknown. ProtocolViolation: a known kind, but damaged."""
    reader = Reader(raw)
    kind = _KINDS.get(reader.int16())
    if kind is None:
        return None
    key = kind[0].read(reader, 0)
    reader.finish()
    return key


def decode_value(key: Message, raw: bytes) -> Message:
    """The value of a record with this key; ProtocolViolation if it is damaged or too new."""
    value_class = _VALUES[type(key)]
    # A broker wrote it: its length is limit enough, and what cannot be read is lost.
    reader = Reader(raw, budget=len(raw))
    version = reader.int16()
    if not value_class.version_min <= version <= value_class.version_max:
        raise ProtocolViolation(f"{value_class.__name__} of version {version}")
    value = value_class.read(reader, version)
    reader.finish()
    return value


# --- classic groups ------------------------------------------------------------------------------


def group_metadata_record(group_id: str, value: GroupMetadataValue) -> CoordinatorRecord:
    return encode_record(GroupMetadataKey(group=group_id), value, GROUP_METADATA_VERSION)


def group_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    return encode_tombstone(GroupMetadataKey(group=group_id))


# --- offsets -------------------------------------------------------------------------------------


def offset_commit_key(group_id: str, topic: str, partition: int) -> bytes:
    return encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=partition))


def is_offset_key(raw: bytes) -> bool:
    return raw[:2] == _OFFSET_KEY_PREFIX


def encode_offset_value(
    offset: int, leader_epoch: int, metadata: str, commit_ms: int, topic_id: bytes
) -> bytes:
    """`topic_id` is sixteen bytes: the caller converts the id once for many partitions."""
    if metadata:
        return _encode(
            OFFSET_COMMIT_VERSION,
            OffsetCommitValue(
                offset=offset,
                leader_epoch=leader_epoch,
                metadata=metadata,
                commit_timestamp=commit_ms,
                topic_id=uuid_of(topic_id),
            ),
            OFFSET_COMMIT_VERSION,
        )
    return _PLAIN_OFFSET.pack(
        OFFSET_COMMIT_VERSION,
        offset,
        leader_epoch,
        _NO_METADATA,
        commit_ms,
        _TOPIC_ID_TAG,
        topic_id,
    )


def decode_offset_value(raw: bytes) -> OffsetValue:
    """The value of an offset record in any version; ProtocolViolation if it is damaged."""
    if len(raw) == _PLAIN_OFFSET.size:
        version, offset, epoch, length, commit_ms, tag, topic_id = _PLAIN_OFFSET.unpack(raw)
        if version == OFFSET_COMMIT_VERSION and length == _NO_METADATA and tag == _TOPIC_ID_TAG:
            return OffsetValue(offset, epoch, "", commit_ms, topic_id)
    value = decode_value(_ANY_OFFSET_KEY, raw)
    assert isinstance(value, OffsetCommitValue)
    return OffsetValue(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.topic_id.bytes,
    )


_ANY_OFFSET_KEY: Final = OffsetCommitKey()
