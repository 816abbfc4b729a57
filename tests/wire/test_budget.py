"""What one message may cost: counts, objects and tagged fields are bounded separately."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.wire.messages import all_cases, decode
from tidemill.core.errors import ProtocolViolation
from tidemill.core.limits import REQUEST_OBJECTS_MAX, TAGGED_FIELDS_MAX
from tidemill.wire.generated.delete_topics import DeleteTopicsRequest
from tidemill.wire.generated.fetch import FetchPartition
from tidemill.wire.generated.metadata import MetadataRequest
from tidemill.wire.primitives import Reader, Writer
from tools.schema_gen.layout import bytes_min

FETCH_PARTITION_V12 = bytes(32)
"""The fixed fields, all zero; the tag section is to follow."""


def tag(number: int, value: bytes) -> bytes:
    w = Writer()
    w.uvarint(number)
    w.uvarint(len(value))
    return bytes(w.buf) + value


def fetch_partition(tags: bytes) -> FetchPartition:
    r = Reader(FETCH_PARTITION_V12 + tags)
    partition = FetchPartition.read(r, 12)
    r.finish()
    return partition


@pytest.mark.parametrize("count", [0x7FFFFFFF, 0x01000000, 11])
def test_S3_a_count_above_the_remaining_bytes_is_refused_before_anything_is_allocated(
    count,
):
    body = count.to_bytes(4, "big") + bytes(10)
    with pytest.raises(ProtocolViolation, match="elements in 10 bytes"):
        Reader(body).count(1)


def test_S3_a_count_is_checked_with_the_smallest_element():
    body = (3).to_bytes(4, "big") + bytes(47)
    with pytest.raises(ProtocolViolation, match="3 elements in 47 bytes"):
        Reader(body).count(16)
    assert Reader(body + b"\0").count(16) == 3


def test_S3_no_element_of_any_array_has_size_zero():
    for case in all_cases():
        for struct in case.schema.structs.values():
            if struct is not case.schema.root and case.version in struct.versions:
                assert bytes_min(struct, case.schema, case.version) >= 1, f"{case} {struct.name}"


def test_S4_all_arrays_of_a_message_share_one_budget():
    r = Reader(bytes.fromhex("00000003 000000 00000003 000000"), budget=5)
    assert r.count(1) == 3
    r.pos += 3
    with pytest.raises(ProtocolViolation, match="too many elements"):
        r.count(1)


def test_S4_strings_of_an_element_are_charged_with_it():
    r = Reader(bytes.fromhex("00000002") + bytes(4), budget=5)
    r.count(2, 2)
    assert r.budget == 1


def test_S4_a_million_empty_names_are_refused():
    w = Writer()
    w.compact_count(1_000_000)
    with pytest.raises(ProtocolViolation, match="too many elements"):
        decode(DeleteTopicsRequest, bytes(w.buf) + b"\x01" * 1_000_000 + bytes(5), 5)


@pytest.mark.slow
def test_S4_the_costliest_message_within_the_budget_stays_in_megabytes():
    w = Writer()
    w.compact_count(REQUEST_OBJECTS_MAX)
    body = bytes(w.buf) + b"\x03ab" * REQUEST_OBJECTS_MAX + bytes(5)
    tracemalloc.start()
    decode(DeleteTopicsRequest, body, 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * 1024 * 1024


def test_S5_known_and_unknown_tags_are_distinguished():
    tags = b"\x02" + tag(77, b"unknown") + tag(10000, (5).to_bytes(8, "big"))
    assert fetch_partition(tags).flushed_offset == 5


def test_S5_a_tag_of_a_later_version_is_unknown():
    partition = fetch_partition(b"\x01" + tag(1, (5).to_bytes(8, "big")))
    assert partition == FetchPartition(
        current_leader_epoch=0, last_fetched_epoch=0, log_start_offset=0
    )


def test_S5_up_to_64_tagged_fields_are_skipped_and_no_more():
    def section(count: int) -> bytes:
        return bytes([count]) + b"".join(tag(number, b"") for number in range(100, 100 + count))

    fetch_partition(section(TAGGED_FIELDS_MAX))
    with pytest.raises(ProtocolViolation, match="65 tagged fields"):
        fetch_partition(section(TAGGED_FIELDS_MAX + 1))


def test_S5_twenty_million_tagged_fields_cost_nothing():
    w = Writer()
    w.uvarint(20_000_000)
    with pytest.raises(ProtocolViolation, match="20000000 tagged fields"):
        decode(MetadataRequest, bytes.fromhex("00 01 00") + bytes(w.buf) + bytes(1000), 12)


@pytest.mark.parametrize("second", [5, 4], ids=["duplicate", "falling"])
def test_S7_tags_must_rise(second):
    with pytest.raises(ProtocolViolation, match="after tag 5"):
        fetch_partition(b"\x02" + tag(5, b"x") + tag(second, b"y"))


@pytest.mark.parametrize("value", [b"", bytes(7), bytes(9)])
def test_a_known_tag_of_the_wrong_size_is_a_violation(value):
    with pytest.raises(ProtocolViolation):
        fetch_partition(b"\x01" + tag(10000, value))


def test_a_known_tag_that_reads_past_its_own_end_is_a_violation():
    with pytest.raises(ProtocolViolation, match="tagged field ends at"):
        fetch_partition(b"\x01" + tag(10000, bytes(4)) + bytes(4))


def test_a_tag_that_claims_more_than_the_message_is_a_violation():
    with pytest.raises(ProtocolViolation):
        fetch_partition(b"\x01\x4d\x7f" + b"short")
