"""The fast codec and the generated one must agree on everything that the fast one accepts."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import ProtocolViolation
from tidemill.core.ids import ZERO_UUID
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidemill.wire.headers import encode_response
from tidemill.wire.offset_commit_fast import try_encode_response, try_read_request
from tidemill.wire.primitives import Reader, Writer

FLEXIBLE = (8, 9, 10)
NOT_FLEXIBLE = (2, 7)
SPEC = API_SPECS[ApiKey.OFFSET_COMMIT]
TOPIC_ID = UUID(int=7)


def request_of(version, *, metadata="", partitions=1, topics=1, **fields):
    topic = {"topic_id": TOPIC_ID} if version >= 10 else {"name": "topic"}
    return OffsetCommitRequest(
        **{"group_id": "group", "member_id": "member", **fields},
        topics=[
            OffsetCommitRequestTopic(
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index,
                        committed_offset=index + 5,
                        committed_metadata=metadata,
                    )
                    for index in range(partitions)
                ],
                **topic,
            )
        ]
        * topics,
    )


def encoded(request, version):
    writer = Writer()
    request.write(writer, version)
    return bytes(writer.buf)


def fast(raw, version):
    return try_read_request(memoryview(b"head" + raw), 4, version)


def slow(raw, version):
    reader = Reader(raw)
    request = OffsetCommitRequest.read(reader, version)
    reader.finish()
    return request


def response_of(version, *codes, name="topic", throttle_ms=0, topics=1):
    key = {"topic_id": TOPIC_ID} if version >= 10 else {"name": name}
    partitions = [
        OffsetCommitResponsePartition(partition_index=index, error_code=code)
        for index, code in enumerate(codes)
    ]
    topic = OffsetCommitResponseTopic(partitions=partitions, **key)
    return OffsetCommitResponse(throttle_time_ms=throttle_ms, topics=[topic] * topics)


def generated_answer(response, version):
    return b"".join(encode_response(response, spec=SPEC, version=version, correlation_id=9))


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("metadata", ["", None])
@pytest.mark.parametrize("partitions", [0, 1, 3, 126])
@pytest.mark.parametrize("instance_id", [None, "instance"])
def test_requests_of_the_common_shape_are_read_alike(version, metadata, partitions, instance_id):
    request = request_of(
        version,
        metadata=metadata,
        partitions=partitions,
        group_instance_id=instance_id,
        generation_id_or_member_epoch=7,
    )
    raw = encoded(request, version)
    assert fast(raw, version) == slow(raw, version) == request


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize(
    "other",
    [
        {"metadata": "words"},
        {"topics": 0},
        {"topics": 2},
        {"partitions": 127},
        {"group_id": "g" * 127},
        {"member_id": "m" * 127},
    ],
    ids=str,
)
def test_other_shapes_are_left_to_the_generated_codec(version, other):
    assert fast(encoded(request_of(version, **other), version), version) is None


@pytest.mark.parametrize("version", NOT_FLEXIBLE)
def test_older_versions_are_left_to_the_generated_codec(version):
    assert fast(encoded(request_of(version), version), version) is None
    assert try_encode_response(response_of(version, 0), version, 9) is None


@pytest.mark.parametrize("version", FLEXIBLE)
def test_a_request_that_is_cut_or_too_long_is_left_to_the_generated_codec(version):
    raw = encoded(request_of(version), version)
    assert all(fast(raw[:end], version) is None for end in range(len(raw)))
    assert fast(raw + b"\0", version) is None


@given(st.data(), st.sampled_from(FLEXIBLE))
def test_a_damaged_request_is_read_alike_or_not_at_all(data, version):
    raw = bytearray(encoded(request_of(version, partitions=2), version))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] = data.draw(st.integers(0, 255))
    read = fast(bytes(raw), version)
    if read is None:
        return
    try:
        expected = slow(bytes(raw), version)
    except ProtocolViolation as violation:
        raise AssertionError(f"the fast codec took {bytes(raw).hex()}") from violation
    assert read == expected


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("codes", [(), (0,), (0, 22, 0), (16,) * 126])
def test_answers_of_the_common_shape_are_written_alike(version, codes):
    response = response_of(version, *codes, throttle_ms=250)
    assert try_encode_response(response, version, 9) == generated_answer(response, version)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_answers_of_other_shapes_are_left_to_the_generated_codec(version):
    assert try_encode_response(response_of(version, *([0] * 127)), version, 9) is None
    assert try_encode_response(response_of(version, 0, topics=2), version, 9) is None


@pytest.mark.parametrize("length", [126, 127, 300])
def test_answers_with_long_names_agree_or_are_left_to_the_generated_codec(length):
    response = response_of(9, 0, name="t" * length)
    fast_answer = try_encode_response(response, 9, 9)
    assert (fast_answer is None) == (length > 126)
    assert fast_answer in (None, generated_answer(response, 9))


def test_an_id_of_zeros_is_read_as_the_generated_codec_reads_it():
    request = request_of(10)
    request.topics[0].topic_id = ZERO_UUID
    raw = encoded(request, 10)
    assert fast(raw, 10) == slow(raw, 10)
