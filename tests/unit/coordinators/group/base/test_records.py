from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordinators.group.base import records
from tidemill.coordinators.runtime.shard import CoordinatorRecord
from tidemill.core.errors import ProtocolViolation
from tidemill.core.ids import ZERO_UUID
from tidemill.wire.generated.consumer_group_member_metadata_record import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from tidemill.wire.generated.group_metadata_record import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from tidemill.wire.generated.offset_commit_record import OffsetCommitKey, OffsetCommitValue

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


def generated(value, version):
    return records.encode_record(OffsetCommitKey(), value, version).value


def test_an_offset_record_has_these_bytes():
    key = records.offset_commit_key("grp", "top", 7)
    value = records.encode_offset_value(42, 3, "", 1_700_000_000_000, TOPIC_ID.bytes)
    assert key.hex() == "000100036772700003746f7000000007"
    assert value.hex() == (
        "0004" "000000000000002a" "00000003" "01" "0000018bcfe56800" "010010"
        "00112233445566778899aabbccddeeff"
    )  # fmt: skip


def test_a_group_record_has_these_bytes():
    value = GroupMetadataValue(
        protocol_type="consumer", generation=2, protocol="range", leader="m", members=[]
    )
    record = records.group_metadata_record("grp", value)
    assert record.key.hex() == "00020003677270"
    assert record.value.hex() == (
        "0003" "0008636f6e73756d6572" "00000002" "000572616e6765" "00016d" "ffffffffffffffff"
        "00000000"
    )  # fmt: skip


@given(INT64, INT32, st.text(max_size=40), INT64, st.uuids())
def test_the_packed_offset_value_is_what_the_generated_class_writes(
    offset, epoch, metadata, commit_ms, topic_id
):
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=epoch,
        metadata=metadata,
        commit_timestamp=commit_ms,
        topic_id=topic_id,
    )
    packed = records.encode_offset_value(offset, epoch, metadata, commit_ms, topic_id.bytes)
    assert packed == generated(value, records.OFFSET_COMMIT_VERSION)
    assert records.decode_offset_value(packed) == (
        offset,
        epoch,
        metadata,
        commit_ms,
        topic_id.bytes,
    )


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("metadata", ["", "x" * 19, "ä"])
def test_offset_values_of_every_version_are_read(version, metadata):
    value = OffsetCommitValue(offset=9, metadata=metadata, commit_timestamp=5)
    read = records.decode_offset_value(generated(value, version))
    assert read == (9, -1, metadata, 5, ZERO_UUID.bytes)


def test_a_plain_offset_value_of_the_same_length_but_another_shape_is_not_misread():
    same_length = OffsetCommitValue(offset=1, metadata="x" * 18, commit_timestamp=2)
    plain = records.encode_offset_value(1, -1, "", 2, TOPIC_ID.bytes)
    raw = generated(same_length, 4)
    assert len(raw) == len(plain)
    assert records.decode_offset_value(raw).metadata == "x" * 18


def test_keys_and_values_come_back_as_they_were():
    key = ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")
    value = ConsumerGroupMemberMetadataValue(client_id="c", subscribed_topic_names=["t"])
    record = records.encode_record(key, value, 0)
    assert records.try_decode_key(record.key) == key
    assert records.decode_value(key, record.value) == value


def test_a_tombstone_is_the_key_alone():
    tombstone = CoordinatorRecord(b"\x00\x02\x00\x01g", None)
    assert records.group_metadata_tombstone("g") == tombstone
    assert records.encode_record(GroupMetadataKey(group="g"), None, 3) == tombstone


@pytest.mark.parametrize("kind", [0, 4, 9, 15, 99, -1])
def test_kinds_that_are_not_known_are_skipped(kind):
    assert records.try_decode_key(kind.to_bytes(2, "big", signed=True) + b"whatever") is None


@pytest.mark.parametrize(
    "raw", [b"", b"\x00", b"\x00\x01", b"\x00\x02\x00\x05g", b"\x00\x02\x00\x01gX"]
)
def test_damaged_keys_of_known_kinds_are_violations(raw):
    with pytest.raises(ProtocolViolation):
        records.try_decode_key(raw)


@pytest.mark.parametrize("version", [-1, 5])
def test_values_of_unknown_versions_are_violations(version):
    raw = version.to_bytes(2, "big", signed=True) + bytes(40)
    with pytest.raises(ProtocolViolation, match="OffsetCommitValue"):
        records.decode_offset_value(raw)


def test_an_offset_value_cut_anywhere_is_a_violation():
    raw = records.encode_offset_value(1, 2, "m", 3, TOPIC_ID.bytes)
    for end in range(len(raw)):
        with pytest.raises(ProtocolViolation):
            records.decode_offset_value(raw[:end])


def test_a_group_of_ten_thousand_members_can_be_read_again():
    members = [MemberMetadata(member_id=f"m{number}") for number in range(10_000)]
    record = records.group_metadata_record("g", GroupMetadataValue(members=members))
    value = records.decode_value(GroupMetadataKey(), record.value)
    assert len(value.members) == 10_000
