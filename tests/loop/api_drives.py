"""Every API but those of coordinators, asked for something ordinary and for something large."""

from __future__ import annotations

from tests.loop.stage import WIDE, Drive, Stage, as_peer
from tidemill.core.errors import ErrorCode
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated import alter_configs, delete_records
from tidemill.wire.generated import describe_quorum as quorum_described
from tidemill.wire.generated import describe_topic_partitions as partitions_described
from tidemill.wire.generated import incremental_alter_configs as incremental
from tidemill.wire.generated.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from tidemill.wire.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.wire.generated.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tidemill.wire.generated.api_versions import ApiVersionsRequest
from tidemill.wire.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tidemill.wire.generated.delete_topics import DeleteTopicsRequest
from tidemill.wire.generated.describe_cluster import DescribeClusterRequest
from tidemill.wire.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from tidemill.wire.generated.describe_log_dirs import DescribeLogDirsRequest
from tidemill.wire.generated.describe_producers import DescribeProducersRequest, TopicRequest
from tidemill.wire.generated.elect_leaders import ElectLeadersRequest
from tidemill.wire.generated.envelope import EnvelopeRequest
from tidemill.wire.generated.init_producer_id import InitProducerIdRequest
from tidemill.wire.generated.list_config_resources import ListConfigResourcesRequest
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.generated.list_partition_reassignments import ListPartitionReassignmentsRequest
from tidemill.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.wire.generated.replica_batches import ReplicaBatchesRequest
from tidemill.wire.generated.replica_log_ends import (
    AskedLogPartition,
    AskedLogTopic,
    ReplicaLogEndsRequest,
)
from tidemill.wire.generated.replica_progress import (
    ProgressPartition,
    ProgressTopic,
    ReplicaProgressRequest,
)
from tidemill.wire.generated.unregister_broker import UnregisterBrokerRequest
from tidemill.wire.generated.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tidemill.wire.headers import encode_request

LARGE = 64
"""Partitions that get nearly a megabyte each in one request."""
TOPIC_RESOURCE = 2
SET = 0


# --- records -------------------------------------------------------------------------------------


async def produce(stage: Stage) -> None:
    await stage.create("wide", WIDE)
    await stage.produce("wide")
    await stage.produce("wide", range(WIDE))
    await stage.produce("wide", range(LARGE), size=900_000)


async def produce_into_new_segments(stage: Stage) -> None:
    await stage.create("wide", WIDE, segment_bytes=1024)
    await stage.produce("wide", range(WIDE), size=900)
    await stage.produce("wide", range(WIDE), size=900)


async def fetch(stage: Stage) -> None:
    await stage.fill("wide", WIDE, 3)
    for is_resident in (True, False):
        stage.world.disk(0).is_resident = is_resident
        await stage.fetch("wide")
        await stage.fetch("wide", WIDE)
    await stage.create("large", LARGE)
    for first in range(0, LARGE, LARGE // 4):
        await stage.produce("large", range(first, first + LARGE // 4), size=900_000)
    for is_resident in (True, False):
        stage.world.disk(0).is_resident = is_resident
        await stage.fetch("large", LARGE)


async def fetch_views(stage: Stage) -> None:
    await stage.fill("wide", WIDE, 3)
    await stage.create("large", LARGE)
    for first in range(0, LARGE, LARGE // 4):
        await stage.produce("large", range(first, first + LARGE // 4), size=900_000)
    for base, partitions in (("wide", WIDE), ("large", LARGE)):
        for number, selector in enumerate(("", "a = 1", "_key IS NULL")):
            view = f"{base}.{number}"
            keys = {"tidemill_view_of": base, "tidemill_view_filter": selector}
            await stage.create(view, -1, replication=-1, **keys)
            for is_resident in (True, False):
                stage.world.disk(0).is_resident = is_resident
                await stage.fetch(view)
                await stage.fetch(view, partitions)


async def list_offsets(stage: Stage) -> None:
    await stage.fill("wide", WIDE, 3)
    for timestamp in (-1, -2, -3, 1):
        wanted = [ListOffsetsPartition(partition_index=i, timestamp=timestamp) for i in range(WIDE)]
        topics = [ListOffsetsTopic(name="wide", partitions=wanted)]
        await stage.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7)


async def offset_for_leader_epoch(stage: Stage) -> None:
    await stage.create("wide", WIDE)
    await stage.produce("wide", range(WIDE))
    wanted = [OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in range(WIDE)]
    topics = [OffsetForLeaderTopic(topic="wide", partitions=wanted)]
    await stage.ask(OffsetForLeaderEpochRequest(topics=topics), 4)


async def init_producer_id(stage: Stage) -> None:
    for _ in range(3):
        await stage.ask(InitProducerIdRequest(transactional_id=None), 4)


async def describe_producers(stage: Stage) -> None:
    await stage.create("wide", WIDE)
    topics = [TopicRequest(name="wide", partition_indexes=list(range(WIDE)))]
    await stage.ask(DescribeProducersRequest(topics=topics), 0)


async def delete_some_records(stage: Stage) -> None:
    await stage.fill("wide", WIDE, 3)
    for partitions in (1, WIDE):
        wanted = [
            delete_records.DeleteRecordsPartition(partition_index=i, offset=-1)
            for i in range(partitions)
        ]
        topics = [delete_records.DeleteRecordsTopic(name="wide", partitions=wanted)]
        request = delete_records.DeleteRecordsRequest(topics=topics, timeout_ms=60_000)
        await stage.ask(request, 2)


# --- topics --------------------------------------------------------------------------------------


async def create_topics(stage: Stage) -> None:
    await stage.create("one")
    await stage.create("wide", WIDE)


async def delete_topics(stage: Stage) -> None:
    await stage.create("one")
    await stage.create("wide", WIDE)
    await stage.produce("wide", range(WIDE))
    await stage.delete("one")
    await stage.delete("wide")
    await stage.create("wide", WIDE)


async def create_partitions(stage: Stage) -> None:
    await stage.create("grows")
    wanted = [CreatePartitionsTopic(name="grows", count=WIDE, assignments=None)]
    await stage.ask(CreatePartitionsRequest(topics=wanted, timeout_ms=60_000), 3)


async def describe_configs(stage: Stage) -> None:
    await stage.create("one")
    wanted = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name="one", configuration_keys=None
    )
    await stage.ask(DescribeConfigsRequest(resources=[wanted] * WIDE), 4)


async def alter_configs_of_a_wide_topic(stage: Stage) -> None:
    await stage.create("wide", WIDE)
    await stage.produce("wide", range(WIDE))
    key = alter_configs.AlterableConfig(name="segment.bytes", value="2048")
    wanted = alter_configs.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name="wide", configs=[key]
    )
    await stage.ask(alter_configs.AlterConfigsRequest(resources=[wanted]), 2)


async def incremental_alter_configs(stage: Stage) -> None:
    await stage.create("wide", WIDE)
    await stage.produce("wide", range(WIDE))
    key = incremental.AlterableConfig(name="cleanup.policy", config_operation=SET, value="compact")
    wanted = incremental.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name="wide", configs=[key]
    )
    await stage.ask(incremental.IncrementalAlterConfigsRequest(resources=[wanted]), 1)


# --- the cluster ---------------------------------------------------------------------------------


async def metadata(stage: Stage) -> None:
    await stage.create("wide", WIDE)
    await stage.ask(MetadataRequest(topics=None), 8)
    wanted = [MetadataRequestTopic(name=name) for name in ("wide", "made-by-asking")]
    await stage.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=True), 8)


async def describe_cluster(stage: Stage) -> None:
    await stage.ask(DescribeClusterRequest(), 0)


async def describe_log_dirs(stage: Stage) -> None:
    await stage.create("wide", WIDE)
    await stage.produce("wide", range(WIDE))
    await stage.ask(DescribeLogDirsRequest(topics=None), 4)


async def one_node_answers(stage: Stage) -> None:
    """What tools ask of a cluster, and one node answers from its image."""
    await stage.create("wide", WIDE)
    described = [partitions_described.TopicRequest(name="wide")]
    await stage.ask(partitions_described.DescribeTopicPartitionsRequest(topics=described), 0)
    await stage.ask(ListConfigResourcesRequest(), 1)
    quorum = quorum_described.RequestTopicData(
        topic_name="__cluster_metadata",
        partitions=[quorum_described.RequestPartitionData(partition_index=0)],
    )
    await stage.ask(quorum_described.DescribeQuorumRequest(topics=[quorum]), 2)
    await stage.ask(ElectLeadersRequest(topic_partitions=None), 2)
    same = [ReassignablePartition(partition_index=index, replicas=[0]) for index in range(WIDE)]
    wanted = [ReassignableTopic(name="wide", partitions=same)]
    await stage.ask(AlterPartitionReassignmentsRequest(topics=wanted), 1)
    await stage.ask(ListPartitionReassignmentsRequest(topics=None), 0)
    gone = UnregisterBrokerRequest(broker_id=99)
    await stage.ask(gone, 0, refused=ErrorCode.BROKER_ID_NOT_REGISTERED)
    lower = FeatureUpdateKey(feature="transaction.version", max_version_level=1, upgrade_type=2)
    await stage.ask(UpdateFeaturesRequest(feature_updates=[lower]), 2)
    moved = [AlterReplicaLogDirTopic(name="wide", partitions=list(range(WIDE)))]
    to = [AlterReplicaLogDir(path="/data", topics=moved)]
    await stage.ask(AlterReplicaLogDirsRequest(dirs=to), 2)


async def api_versions(stage: Stage) -> None:
    await stage.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)


# --- between brokers -----------------------------------------------------------------------------


async def as_another_broker(stage: Stage) -> None:
    """What brokers ask each other: proposals for a wide topic, a flush, and a request passed on."""
    await stage.create("wide", WIDE)
    async with as_peer(stage) as internal:
        await ask_as_another_broker(internal)


async def ask_as_another_broker(internal: Stage) -> None:
    cluster = internal.world.broker(0).cluster
    topic = cluster.image.topics["wide"]
    me = [BrokerState(broker_id=0, broker_epoch=cluster.broker_epoch)]
    data = [RequestPartitionData(partition_index=i, new_isr_with_epochs=me) for i in range(WIDE)]
    topics = [RequestTopicData(topic_id=topic.topic_id, partitions=data)]
    proposals = AlterPartitionRequest(broker_id=0, broker_epoch=cluster.broker_epoch, topics=topics)
    await internal.ask(proposals, 3)
    flushed = [ProgressPartition(partition_index=i, leader_epoch=0) for i in range(WIDE)]
    progress = ReplicaProgressRequest(
        broker_id=0,
        broker_epoch=cluster.broker_epoch,
        topics=[ProgressTopic(topic_id=topic.topic_id, partitions=flushed)],
    )
    internal.connection.send_unanswered_nowait(progress, version=0)
    logs = [AskedLogPartition(partition_index=i, leader_epoch=0) for i in range(WIDE)]
    ends = ReplicaLogEndsRequest(
        broker_id=0,
        broker_epoch=cluster.broker_epoch,
        topics=[AskedLogTopic(topic_id=topic.topic_id, partitions=logs)],
    )
    await internal.ask(ends, 0, refused=ErrorCode.NOT_LEADER_OR_FOLLOWER)  # it leads them all
    await internal.ask(ReplicaBatchesRequest(topic_id=topic.topic_id, max_bytes=1 << 20), 0)
    spec = API_SPECS[ApiKey.DELETE_TOPICS]
    request = DeleteTopicsRequest(topic_names=["wide"], timeout_ms=60_000)
    frame = encode_request(request, spec=spec, version=5, correlation_id=0, client_id="c")
    await internal.ask(EnvelopeRequest(request_data=b"".join(frame)[4:]), 0)


SERVING: dict[str, tuple[Drive, tuple[ApiKey, ...]]] = {
    "produce": (produce, (ApiKey.PRODUCE,)),
    "produce into new segments": (produce_into_new_segments, (ApiKey.PRODUCE,)),
    "fetch": (fetch, (ApiKey.FETCH,)),
    "fetch views": (fetch_views, (ApiKey.FETCH,)),
    "list offsets": (list_offsets, (ApiKey.LIST_OFFSETS,)),
    "leader epochs": (offset_for_leader_epoch, (ApiKey.OFFSET_FOR_LEADER_EPOCH,)),
    "producer ids": (init_producer_id, (ApiKey.INIT_PRODUCER_ID,)),
    "describe producers": (describe_producers, (ApiKey.DESCRIBE_PRODUCERS,)),
    "delete records": (delete_some_records, (ApiKey.DELETE_RECORDS,)),
    "create topics": (create_topics, (ApiKey.CREATE_TOPICS,)),
    "delete topics": (delete_topics, (ApiKey.DELETE_TOPICS,)),
    "create partitions": (create_partitions, (ApiKey.CREATE_PARTITIONS,)),
    "describe configs": (describe_configs, (ApiKey.DESCRIBE_CONFIGS,)),
    "alter configs": (alter_configs_of_a_wide_topic, (ApiKey.ALTER_CONFIGS,)),
    "incremental configs": (incremental_alter_configs, (ApiKey.INCREMENTAL_ALTER_CONFIGS,)),
    "metadata": (metadata, (ApiKey.METADATA,)),
    "describe cluster": (describe_cluster, (ApiKey.DESCRIBE_CLUSTER,)),
    "describe log dirs": (describe_log_dirs, (ApiKey.DESCRIBE_LOG_DIRS,)),
    "one-node answers": (
        one_node_answers,
        (
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            ApiKey.ELECT_LEADERS,
            ApiKey.LIST_CONFIG_RESOURCES,
            ApiKey.DESCRIBE_QUORUM,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            ApiKey.UNREGISTER_BROKER,
            ApiKey.UPDATE_FEATURES,
            ApiKey.ALTER_REPLICA_LOG_DIRS,
        ),
    ),
    "as another broker": (
        as_another_broker,
        (
            ApiKey.ALTER_PARTITION,
            ApiKey.ENVELOPE,
            ApiKey.REPLICA_BATCHES,
            ApiKey.REPLICA_LOG_ENDS,
            ApiKey.REPLICA_PROGRESS,
        ),
    ),
    "api versions": (api_versions, (ApiKey.API_VERSIONS,)),
}
"""What is done, and which APIs that covers."""
