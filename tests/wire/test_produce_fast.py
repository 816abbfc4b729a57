"""The fast codec of Produce agrees with the generated one on one shape and leaves it the others."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidemill.wire.headers import encode_response
from tidemill.wire.primitives import Reader, Writer
from tidemill.wire.produce_fast import try_encode_response, try_read_request

SPEC = API_SPECS[ApiKey.PRODUCE]
VERSIONS = range(3, 14)
FAST_VERSIONS = range(5, 14)
TOPIC_ID = UUID(int=0x1234)


def _encoded(request: ProduceRequest, version: int) -> memoryview:
    writer = Writer()
    request.write(writer, version)
    return memoryview(bytearray(b"".join(bytes(chunk) for chunk in writer.chunks())))


def _request(
    version: int, *, name: str = "orders", records: bytes = b"r" * 100, **fields: object
) -> ProduceRequest:
    by_id = version >= 13
    topic = TopicProduceData(
        name="" if by_id else name,
        topic_id=TOPIC_ID if by_id else UUID(int=0),
        partition_data=[PartitionProduceData(index=3, records=records)],
    )
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic], **fields)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_the_fast_reader_reads_what_the_generated_one_reads(version, size):
    frame = _encoded(_request(version, records=b"r" * size), version)
    fast = try_read_request(frame, 0, version)
    reader = Reader(frame)
    assert (fast is None) == (version not in FAST_VERSIONS)
    if fast is not None:
        assert fast == ProduceRequest.read(reader, version)


@pytest.mark.parametrize("version", FAST_VERSIONS)
def test_any_other_shape_is_left_to_the_generated_reader(version):
    two_partitions = _request(version)
    two_partitions.topic_data[0].partition_data.append(PartitionProduceData(index=4, records=b"x"))
    two_topics = _request(version)
    two_topics.topic_data.append(_request(version, name="other").topic_data[0])
    null_records = _request(version)
    null_records.topic_data[0].partition_data[0].records = None
    for other in (
        two_partitions,
        two_topics,
        null_records,
        _request(version, transactional_id="tx"),
    ):
        assert try_read_request(_encoded(other, version), 0, version) is None


@pytest.mark.parametrize("version", FAST_VERSIONS)
def test_a_cut_or_padded_request_is_left_to_the_generated_reader(version):
    frame = _encoded(_request(version), version)
    for end in range(len(frame)):
        assert try_read_request(frame[:end], 0, version) is None
    padded = memoryview(bytes(frame) + b"\0")
    assert try_read_request(padded, 0, version) is None


@given(data=st.data(), version=st.sampled_from(FAST_VERSIONS))
def test_a_changed_byte_never_makes_the_two_readers_disagree(data, version):
    frame = bytearray(_encoded(_request(version), version))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] = data.draw(st.integers(0, 255))
    fast = try_read_request(memoryview(frame), 0, version)
    if fast is not None:
        reader = Reader(memoryview(frame))
        assert fast == ProduceRequest.read(reader, version)
        reader.finish()


def _response(version: int, **fields: object) -> ProduceResponse:
    by_id = version >= 13
    entry = PartitionProduceResponse(
        index=3, base_offset=77, log_append_time_ms=-1, log_start_offset=5, **fields
    )
    topic = TopicProduceResponse(
        name="" if by_id else "orders",
        topic_id=TOPIC_ID if by_id else UUID(int=0),
        partition_responses=[entry],
    )
    return ProduceResponse(responses=[topic], throttle_time_ms=9)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("code", [0, 45])
def test_the_fast_writer_writes_what_the_generated_one_writes(version, code):
    response = _response(version, error_code=code)
    fast = try_encode_response(response, version, 42)
    slow = encode_response(response, spec=SPEC, version=version, correlation_id=42)
    assert (fast is None) == (version not in FAST_VERSIONS)
    if fast is not None:
        assert fast == b"".join(bytes(chunk) for chunk in slow)


@pytest.mark.parametrize("version", FAST_VERSIONS)
def test_an_answer_with_a_message_or_hint_is_left_to_the_generated_writer(version):
    hinted = _response(version)
    hinted.node_endpoints = [NodeEndpoint(node_id=1, host="h", port=1)]
    two = _response(version)
    two.responses[0].partition_responses.append(PartitionProduceResponse(index=1))
    for response in (
        _response(version, error_message="no"),
        _response(version, record_errors=[BatchIndexAndErrorMessage(batch_index=0)]),
        _response(version, current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=1)),
        hinted,
        two,
    ):
        assert try_encode_response(response, version, 1) is None
