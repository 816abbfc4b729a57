"""Bytes written by hand, field by field, from the protocol's description."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest

from tests.wire.messages import decode, encode
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from tidemill.wire.generated.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)
from tidemill.wire.generated.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidemill.wire.headers import encode_request, encode_response
from tidemill.wire.message import Message

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
TOPIC_ID_HEX = "00112233445566778899aabbccddeeff"


@dataclass(frozen=True)
class Golden:
    name: str
    version: int
    message: Message
    fields: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.name}-v{self.version}"

    @property
    def encoded(self) -> bytes:
        return bytes.fromhex("".join(value for _, value in self.fields))


API_VERSIONS_REQUEST_V0 = Golden("api versions request", 0, ApiVersionsRequest(), ())

API_VERSIONS_REQUEST_V3 = Golden(
    "api versions request",
    3,
    ApiVersionsRequest(client_software_name="ab", client_software_version="1.0"),
    (
        ("name: 2 + 1, 'ab'", "03 61 62"),
        ("version: 3 + 1, '1.0'", "04 31 2e 30"),
        ("tags", "00"),
    ),
)

API_VERSIONS_RESPONSE_V0 = Golden(
    "api versions response",
    0,
    ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)]
    ),
    (
        ("error code", "0023"),
        ("array of 1", "00000001"),
        ("api key", "0012"),
        ("from", "0000"),
        ("to", "0004"),
    ),
)

API_VERSIONS_RESPONSE_V3 = Golden(
    "api versions response",
    3,
    ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=0, min_version=0, max_version=13)],
        finalized_features_epoch=7,
        finalized_features=[
            FinalizedFeatureKey(name="f", max_version_level=2, min_version_level=1)
        ],
    ),
    (
        ("error code", "0000"),
        ("array of 1, plus 1", "02"),
        ("api key", "0000"),
        ("from", "0000"),
        ("to", "000d"),
        ("tags of the element", "00"),
        ("throttle time", "00000000"),
        ("two tags", "02"),
        ("tag 1, 8 bytes: epoch", "01 08 0000000000000007"),
        ("tag 2, 8 bytes", "02 08"),
        ("array of 1, plus 1", "02"),
        ("name", "02 66"),
        ("max level", "0002"),
        ("min level", "0001"),
        ("tags of the element", "00"),
    ),
)

PRODUCE_REQUEST_V9 = Golden(
    "produce request",
    9,
    ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name="orders",
                partition_data=[PartitionProduceData(index=3, records=b"\xca\xfe\xba\xbe")],
            )
        ],
    ),
    (
        ("transactional id: null", "00"),
        ("acks", "ffff"),
        ("timeout", "00007530"),
        ("array of 1, plus 1", "02"),
        ("topic", "07 6f7264657273"),
        ("array of 1, plus 1", "02"),
        ("partition", "00000003"),
        ("records: 4 + 1", "05 cafebabe"),
        ("tags: partition, topic, request", "00 00 00"),
    ),
)

PRODUCE_RESPONSE_V9 = Golden(
    "produce response",
    9,
    ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="orders",
                partition_responses=[
                    PartitionProduceResponse(index=3, base_offset=258, log_start_offset=0)
                ],
            )
        ]
    ),
    (
        ("array of 1, plus 1", "02"),
        ("topic", "07 6f7264657273"),
        ("array of 1, plus 1", "02"),
        ("partition", "00000003"),
        ("error code", "0000"),
        ("base offset", "0000000000000102"),
        ("log append time", "ffffffffffffffff"),
        ("log start offset", "0000000000000000"),
        ("record errors: empty", "01"),
        ("error message: null", "00"),
        ("tags: partition, topic", "00 00"),
        ("throttle time", "00000000"),
        ("tags", "00"),
    ),
)

FETCH_REQUEST_V12 = Golden(
    "fetch request of a follower",
    12,
    FetchRequest(
        cluster_id="c",
        replica_id=2,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=65_536,
        topics=[
            FetchTopic(
                topic="t",
                partitions=[
                    FetchPartition(
                        partition=1,
                        current_leader_epoch=5,
                        fetch_offset=9,
                        last_fetched_epoch=4,
                        log_start_offset=0,
                        partition_max_bytes=4096,
                        flushed_offset=8,
                    )
                ],
            )
        ],
        rack_id="r",
    ),
    (
        ("replica", "00000002"),
        ("max wait", "000001f4"),
        ("min bytes", "00000001"),
        ("max bytes", "00010000"),
        ("isolation", "00"),
        ("session id", "00000000"),
        ("session epoch", "ffffffff"),
        ("array of 1, plus 1", "02"),
        ("topic", "02 74"),
        ("array of 1, plus 1", "02"),
        ("partition", "00000001"),
        ("leader epoch", "00000005"),
        ("fetch offset", "0000000000000009"),
        ("last fetched epoch", "00000004"),
        ("log start offset", "0000000000000000"),
        ("max bytes", "00001000"),
        ("one tag of ours: 10000, 8 bytes", "01 904e 08 0000000000000008"),
        ("tags of the topic", "00"),
        ("forgotten topics: empty", "01"),
        ("rack", "02 72"),
        ("one tag: 0, 2 bytes: cluster id", "01 00 02 02 63"),
    ),
)

FETCH_REQUEST_V15 = Golden(
    "fetch request of a follower",
    15,
    FetchRequest(
        replica_state=ReplicaState(replica_id=2, replica_epoch=6), max_wait_ms=500, min_bytes=1
    ),
    (
        ("max wait", "000001f4"),
        ("min bytes", "00000001"),
        ("max bytes", "7fffffff"),
        ("isolation", "00"),
        ("session id", "00000000"),
        ("session epoch", "ffffffff"),
        ("topics, forgotten topics, rack: empty", "01 01 01"),
        ("one tag: 1, 13 bytes", "01 01 0d"),
        ("replica, its epoch, tags", "00000002 0000000000000006 00"),
    ),
)

FETCH_RESPONSE_V13 = Golden(
    "fetch response",
    13,
    FetchResponse(
        session_id=77,
        responses=[
            FetchableTopicResponse(
                topic_id=TOPIC_ID,
                partitions=[
                    PartitionData(
                        partition_index=1,
                        error_code=6,
                        high_watermark=10,
                        last_stable_offset=9,
                        log_start_offset=2,
                        current_leader=LeaderIdAndEpoch(leader_id=3, leader_epoch=8),
                        aborted_transactions=[AbortedTransaction(producer_id=4, first_offset=5)],
                        preferred_read_replica=-1,
                        records=b"\x01\x02",
                    )
                ],
            )
        ],
    ),
    (
        ("throttle time", "00000000"),
        ("error code", "0000"),
        ("session id", "0000004d"),
        ("array of 1, plus 1", "02"),
        ("topic id", TOPIC_ID_HEX),
        ("array of 1, plus 1", "02"),
        ("partition", "00000001"),
        ("error code", "0006"),
        ("high watermark", "000000000000000a"),
        ("last stable offset", "0000000000000009"),
        ("log start offset", "0000000000000002"),
        ("array of 1, plus 1", "02"),
        ("producer id, first offset, tags", "0000000000000004 0000000000000005 00"),
        ("preferred read replica", "ffffffff"),
        ("records: 2 + 1", "03 0102"),
        ("one tag: 1, 9 bytes: leader, epoch, tags", "01 01 09 00000003 00000008 00"),
        ("tags: topic, response", "00 00"),
    ),
)

METADATA_REQUEST_V12 = Golden(
    "metadata request",
    12,
    MetadataRequest(
        topics=[MetadataRequestTopic(topic_id=TOPIC_ID, name=None)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    ),
    (
        ("array of 1, plus 1", "02"),
        ("topic id", TOPIC_ID_HEX),
        ("name: null", "00"),
        ("tags", "00"),
        ("auto creation", "00"),
        ("authorized operations", "01"),
        ("tags", "00"),
    ),
)

METADATA_RESPONSE_V12 = Golden(
    "metadata response",
    12,
    MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="h", port=9092)],
        cluster_id="c",
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name="t",
                topic_id=TOPIC_ID,
                partitions=[
                    MetadataResponsePartition(
                        partition_index=0,
                        leader_id=1,
                        leader_epoch=2,
                        replica_nodes=[1, 2],
                        isr_nodes=[1],
                    )
                ],
            )
        ],
    ),
    (
        ("throttle time", "00000000"),
        ("array of 1, plus 1", "02"),
        ("node, host, port", "00000001 0268 00002384"),
        ("rack: null, tags", "00 00"),
        ("cluster id", "02 63"),
        ("controller", "00000001"),
        ("array of 1, plus 1", "02"),
        ("error code", "0000"),
        ("topic", "02 74"),
        ("topic id", TOPIC_ID_HEX),
        ("internal", "00"),
        ("array of 1, plus 1", "02"),
        ("error code, partition", "0000 00000000"),
        ("leader, its epoch", "00000001 00000002"),
        ("replicas", "03 00000001 00000002"),
        ("isr", "02 00000001"),
        ("offline replicas, tags", "01 00"),
        ("authorized operations: not asked", "80000000"),
        ("tags: topic, response", "00 00"),
    ),
)

ALL = [value for name, value in globals().items() if isinstance(value, Golden)]


@pytest.mark.parametrize("golden", ALL, ids=str)
def test_writing_gives_the_golden_bytes(golden):
    assert encode(golden.message, golden.version).hex(" ") == golden.encoded.hex(" ")


@pytest.mark.parametrize("golden", ALL, ids=str)
def test_reading_the_golden_bytes_gives_the_message(golden):
    assert decode(type(golden.message), golden.encoded, golden.version) == golden.message


def test_T5_request_header_2_keeps_the_classic_client_id_and_adds_tags():
    frame = encode_request(
        API_VERSIONS_REQUEST_V3.message,
        spec=API_SPECS[ApiKey.API_VERSIONS],
        version=3,
        correlation_id=1,
        client_id="me",
    )
    header = "00000015 0012 0003 00000001 0002 6d65 00"
    assert b"".join(frame) == bytes.fromhex(header) + API_VERSIONS_REQUEST_V3.encoded


def test_T1_the_api_versions_response_header_has_no_tags_though_the_body_has():
    frame = encode_response(
        API_VERSIONS_RESPONSE_V3.message,
        spec=API_SPECS[ApiKey.API_VERSIONS],
        version=3,
        correlation_id=9,
    )
    body = API_VERSIONS_RESPONSE_V3.encoded
    assert b"".join(frame) == (len(body) + 4).to_bytes(4, "big") + bytes.fromhex("00000009") + body


def test_other_flexible_responses_have_tags_in_the_header():
    frame = encode_response(
        PRODUCE_RESPONSE_V9.message, spec=API_SPECS[ApiKey.PRODUCE], version=9, correlation_id=9
    )
    body = PRODUCE_RESPONSE_V9.encoded
    head = (len(body) + 5).to_bytes(4, "big") + bytes.fromhex("00000009 00")
    assert b"".join(frame) == head + body
