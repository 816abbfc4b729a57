"""A few Kafka brokers in memory, as far as the client needs them, with faults on demand.

Each broker has a table of handlers by API; a test replaces or wraps them. Instead of an answer a
handler may return `SILENCE` (never answers) or `HANG_UP` (ends the connection).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

from tests.unit.client.memory_net import MemoryNet, MemoryTransport
from tidemill.core.errors import ErrorCode
from tidemill.wire.api_keys import API_SPECS, ApiKey, load
from tidemill.wire.batch import assign_offsets, read_header
from tidemill.wire.frames import FrameDecoder
from tidemill.wire.generated import (
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    fetch,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    produce,
)
from tidemill.wire.headers import encode_response, parse_request_header
from tidemill.wire.message import Message
from tidemill.wire.primitives import Reader
from tidemill.wire.records import iter_records

FIRST_PORT = 9092
HOST = "broker.test"


class Reaction(Enum):
    SILENCE = "no answer ever"
    HANG_UP = "the connection ends"


SILENCE = Reaction.SILENCE
HANG_UP = Reaction.HANG_UP

Handler = Callable[[Any, int], Message | Reaction | None]


@dataclass
class FakePartition:
    leader: int
    leader_epoch: int = 0
    log_start_offset: int = 0
    batches: list[bytes] = field(default_factory=list)
    end_offset: int = 0

    def append(self, payload: bytes) -> int:
        data = bytearray(payload)
        base = self.end_offset
        assign_offsets(data, base, self.leader_epoch)
        self.batches.append(bytes(data))
        self.end_offset = read_header(data).next_offset
        return base

    def read(self, offset: int) -> bytes:
        return b"".join(b for b in self.batches if read_header(b).next_offset > offset)

    def values(self) -> list[bytes | None]:
        return [record.value for b in self.batches for record in iter_records(b)]


@dataclass
class FakeTopic:
    topic_id: UUID
    partitions: list[FakePartition]
    configs: dict[str, str] = field(default_factory=dict)


class FakeCluster:
    """`brokers` brokers with ids from 1 on ports from 9092; the first is the controller."""

    def __init__(self, brokers: int = 1) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.brokers = {node: FakeBroker(self, node) for node in range(1, brokers + 1)}
        self.net = MemoryNet({(HOST, b.port): b for b in self.brokers.values()})
        self.controller_id = 1
        self.next_producer_id = 1000

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        return [(HOST, FIRST_PORT)]

    @property
    def requests(self) -> list[tuple[ApiKey, Any]]:
        """All requests since the start, by broker and time."""
        return [request for broker in self.brokers.values() for request in broker.requests]

    def asked(self, key: ApiKey) -> list[Any]:
        return [request for seen, request in self.requests if seen is key]

    def add_topic(self, name: str, partitions: int = 1, **configs: str) -> FakeTopic:
        leaders = list(self.brokers)
        topic = FakeTopic(
            UUID(int=len(self.topics) + 1),
            [FakePartition(leaders[index % len(leaders)]) for index in range(partitions)],
            configs,
        )
        self.topics[name] = topic
        return topic

    def partition(self, topic: str, index: int) -> FakePartition | None:
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]


class FakeBroker:
    """One broker of the cluster. `handlers` may be changed by tests."""

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.port = FIRST_PORT + node_id - 1
        self.requests: list[tuple[ApiKey, Any]] = []
        self.versions: list[tuple[ApiKey, int]] = []
        self.transports: list[MemoryTransport] = []
        self.version_max: dict[ApiKey, int] = {}
        """Limits the versions of an API, as an older broker would."""
        self.handlers: dict[ApiKey, Handler] = {
            ApiKey.API_VERSIONS: self.api_versions,
            ApiKey.METADATA: self.metadata,
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.DELETE_TOPICS: self.delete_topics,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.alter_configs,
            ApiKey.DELETE_RECORDS: self.delete_records,
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.PRODUCE: self.produce,
            ApiKey.FETCH: self.fetch,
        }
        self._decoders: dict[MemoryTransport, FrameDecoder] = {}

    # --- the wire --------------------------------------------------------------------------------

    def connected(self, transport: MemoryTransport) -> None:
        self.transports.append(transport)
        self._decoders[transport] = FrameDecoder(1 << 27)

    def received(self, transport: MemoryTransport, data: bytes) -> None:
        for frame in self._decoders[transport].feed(data):
            self._answer(transport, frame)

    def _answer(self, transport: MemoryTransport, frame: memoryview) -> None:
        header = parse_request_header(frame)
        request_type, _ = load(header.api_key)
        request = request_type.read(Reader(frame, pos=header.body_offset), header.api_version)
        self.requests.append((header.api_key, request))
        self.versions.append((header.api_key, header.api_version))
        if header.api_version > self._version_max(header.api_key):
            assert header.api_key is ApiKey.API_VERSIONS
            self._send(transport, self._refuse_version(), header.correlation_id)
            return
        reaction = self.handlers[header.api_key](request, header.api_version)
        if reaction is HANG_UP:
            transport.break_off()
        elif isinstance(reaction, Message):
            chunks = encode_response(
                reaction,
                spec=header.spec,
                version=header.api_version,
                correlation_id=header.correlation_id,
            )
            transport.feed(b"".join(bytes(chunk) for chunk in chunks))

    def _send(self, transport: MemoryTransport, body: Message, correlation_id: int) -> None:
        spec = API_SPECS[ApiKey.API_VERSIONS]
        chunks = encode_response(body, spec=spec, version=0, correlation_id=correlation_id)
        transport.feed(b"".join(bytes(chunk) for chunk in chunks))

    def _version_max(self, key: ApiKey) -> int:
        return self.version_max.get(key, API_SPECS[key].version_max)

    def _refuse_version(self) -> Message:
        own = api_versions.ApiVersion(
            api_key=ApiKey.API_VERSIONS, max_version=self._version_max(ApiKey.API_VERSIONS)
        )
        return api_versions.ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own]
        )

    # --- handlers --------------------------------------------------------------------------------

    def api_versions(self, request: api_versions.ApiVersionsRequest, version: int) -> Message:
        keys = [
            api_versions.ApiVersion(
                api_key=key,
                min_version=API_SPECS[key].advertised_min,
                max_version=self._version_max(key),
            )
            for key in self.handlers
        ]
        return api_versions.ApiVersionsResponse(api_keys=keys)

    def metadata(self, request: metadata.MetadataRequest, version: int) -> Message:
        cluster = self.cluster
        names = [t.name for t in request.topics] if request.topics is not None else cluster.topics
        if request.topics is not None and request.allow_auto_topic_creation:
            for name in names:
                if name not in cluster.topics:
                    cluster.add_topic(name, 4)
        return metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(node_id=b.node_id, host=HOST, port=b.port)
                for b in cluster.brokers.values()
            ],
            cluster_id="fake",
            controller_id=cluster.controller_id,
            topics=[self._topic_metadata(name) for name in names],
        )

    def _topic_metadata(self, name: str) -> metadata.MetadataResponseTopic:
        topic = self.cluster.topics.get(name)
        if topic is None:
            return metadata.MetadataResponseTopic(
                name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        return metadata.MetadataResponseTopic(
            name=name,
            topic_id=topic.topic_id,
            partitions=[
                metadata.MetadataResponsePartition(
                    partition_index=index,
                    leader_id=p.leader,
                    leader_epoch=p.leader_epoch,
                    replica_nodes=[p.leader],
                    isr_nodes=[p.leader],
                )
                for index, p in enumerate(topic.partitions)
            ],
        )

    def create_topics(self, request: create_topics.CreateTopicsRequest, version: int) -> Message:
        return create_topics.CreateTopicsResponse(
            topics=[self._create(topic, request.validate_only) for topic in request.topics]
        )

    def _create(
        self, wanted: create_topics.CreatableTopic, validate_only: bool
    ) -> create_topics.CreatableTopicResult:
        code = ErrorCode.NONE
        if self.node_id != self.cluster.controller_id:
            code = ErrorCode.NOT_CONTROLLER
        elif wanted.name in self.cluster.topics:
            code = ErrorCode.TOPIC_ALREADY_EXISTS
        elif not validate_only:
            count = 4 if wanted.num_partitions == -1 else wanted.num_partitions
            topic = self.cluster.add_topic(wanted.name, count)
            topic.configs = {config.name: config.value or "" for config in wanted.configs}
        return create_topics.CreatableTopicResult(
            name=wanted.name,
            error_code=code,
            error_message="no" if code else None,
            num_partitions=4 if wanted.num_partitions == -1 else wanted.num_partitions,
            replication_factor=1,
        )

    def delete_topics(self, request: delete_topics.DeleteTopicsRequest, version: int) -> Message:
        results = []
        for state in request.topics:
            gone = self.cluster.topics.pop(state.name or "", None)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if gone is None else ErrorCode.NONE
            results.append(
                delete_topics.DeletableTopicResult(
                    name=state.name,
                    error_code=code,
                    error_message="no such topic" if code else None,
                )
            )
        return delete_topics.DeleteTopicsResponse(responses=results)

    def create_partitions(
        self, request: create_partitions.CreatePartitionsRequest, version: int
    ) -> Message:
        wanted = request.topics[0]
        partitions = self.cluster.topics[wanted.name].partitions
        code = ErrorCode.NONE
        if wanted.count <= len(partitions):
            code = ErrorCode.INVALID_PARTITIONS
        else:
            partitions += [FakePartition(1) for _ in range(wanted.count - len(partitions))]
        result = create_partitions.CreatePartitionsTopicResult(name=wanted.name, error_code=code)
        return create_partitions.CreatePartitionsResponse(results=[result])

    def describe_configs(
        self, request: describe_configs.DescribeConfigsRequest, version: int
    ) -> Message:
        results = [self._describe_topic_configs(one.resource_name) for one in request.resources]
        return describe_configs.DescribeConfigsResponse(results=results)

    def _describe_topic_configs(self, name: str) -> describe_configs.DescribeConfigsResult:
        topic = self.cluster.topics.get(name)
        result = describe_configs.DescribeConfigsResult(resource_name=name, resource_type=2)
        if topic is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            values = {"retention.ms": "1209600000"} | topic.configs
            result.configs = [
                describe_configs.DescribeConfigsResourceResult(
                    name=key, value=value, config_source=1 if key in topic.configs else 5
                )
                for key, value in sorted(values.items())
            ]
        return result

    def alter_configs(
        self, request: incremental_alter_configs.IncrementalAlterConfigsRequest, version: int
    ) -> Message:
        resource = request.resources[0]
        configs = self.cluster.topics[resource.resource_name].configs
        for config in resource.configs:
            if config.config_operation == 0:
                configs[config.name] = config.value or ""
            else:
                configs.pop(config.name, None)
        answer = incremental_alter_configs.AlterConfigsResourceResponse(
            resource_type=2, resource_name=resource.resource_name
        )
        return incremental_alter_configs.IncrementalAlterConfigsResponse(responses=[answer])

    def delete_records(self, request: delete_records.DeleteRecordsRequest, version: int) -> Message:
        topic = request.topics[0]
        wanted = topic.partitions[0]
        partition = self.cluster.partition(topic.name, wanted.partition_index)
        assert partition is not None
        partition.log_start_offset = wanted.offset
        result = delete_records.DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=wanted.offset
        )
        return delete_records.DeleteRecordsResponse(
            topics=[delete_records.DeleteRecordsTopicResult(name=topic.name, partitions=[result])]
        )

    def list_offsets(self, request: list_offsets.ListOffsetsRequest, version: int) -> Message:
        return list_offsets.ListOffsetsResponse(
            topics=[
                list_offsets.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[self._listed(topic.name, wanted) for wanted in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    def _listed(
        self, topic: str, wanted: list_offsets.ListOffsetsPartition
    ) -> list_offsets.ListOffsetsPartitionResponse:
        answer = list_offsets.ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
        partition, code = self._led(topic, wanted.partition_index)
        answer.error_code = code
        if partition is None:
            return answer
        if wanted.timestamp == -1:
            answer.offset = partition.end_offset
        elif wanted.timestamp == -2:
            answer.offset = partition.log_start_offset
        else:
            records = (record for b in partition.batches for record in iter_records(b))
            found = next((r for r in records if r.timestamp >= wanted.timestamp), None)
            if found is not None:
                answer.offset, answer.timestamp = found.offset, found.timestamp
        return answer

    def _led(self, topic: str, index: int) -> tuple[FakePartition | None, ErrorCode]:
        partition = self.cluster.partition(topic, index)
        if partition is None:
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition.leader != self.node_id:
            return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
        return partition, ErrorCode.NONE

    def init_producer_id(
        self, request: init_producer_id.InitProducerIdRequest, version: int
    ) -> Message:
        self.cluster.next_producer_id += 1
        return init_producer_id.InitProducerIdResponse(
            producer_id=self.cluster.next_producer_id, producer_epoch=0
        )

    def produce(self, request: produce.ProduceRequest, version: int) -> Message | Reaction:
        response = produce.ProduceResponse()
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                partition, code = self._led(topic.name, data.index)
                base = -1 if partition is None else partition.append(bytes(data.records or b""))
                answers.append(
                    produce.PartitionProduceResponse(
                        index=data.index, error_code=code, base_offset=base
                    )
                )
            response.responses.append(
                produce.TopicProduceResponse(name=topic.name, partition_responses=answers)
            )
        return response if request.acks else SILENCE

    def fetch(self, request: fetch.FetchRequest, version: int) -> Message | Reaction:
        response = fetch.FetchResponse()
        for topic in request.topics:
            answers = [self._fetched(topic.topic, wanted) for wanted in topic.partitions]
            response.responses.append(
                fetch.FetchableTopicResponse(topic=topic.topic, partitions=answers)
            )
        return response

    def _fetched(self, topic: str, wanted: fetch.FetchPartition) -> fetch.PartitionData:
        answer = fetch.PartitionData(partition_index=wanted.partition)
        partition, code = self._led(topic, wanted.partition)
        answer.error_code = code
        if partition is None:
            return answer
        if not partition.log_start_offset <= wanted.fetch_offset <= partition.end_offset:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return answer
        answer.high_watermark = partition.end_offset
        answer.records = partition.read(wanted.fetch_offset)
        return answer
