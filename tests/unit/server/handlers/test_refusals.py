"""A request that is refused as a whole gets an answer in every version of its API."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.server.handlers.cluster import (
    alter_replica_log_dirs,
    describe_cluster,
    describe_log_dirs,
    describe_quorum,
    describe_topic_partitions,
    list_partition_reassignments,
)
from tidemill.server.handlers.data import (
    delete_records,
    describe_producers,
    list_offsets,
    offset_for_leader_epoch,
)
from tidemill.server.handlers.groups import (
    delete_groups,
    describe_groups,
    list_groups,
)
from tidemill.server.handlers.offsets import (
    offset_commit,
    offset_delete,
)
from tidemill.server.handlers.topics import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from tidemill.server.handlers.transactions import (
    add_offsets_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)
from tidemill.server.request.dispatch import BoundHandler
from tidemill.wire.api_keys import API_SPECS, load
from tidemill.wire.generated import alter_configs as alter_messages
from tidemill.wire.generated import alter_replica_log_dirs as log_dirs_messages
from tidemill.wire.generated import describe_topic_partitions as topic_partitions_messages
from tidemill.wire.generated import incremental_alter_configs as incremental_messages
from tidemill.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidemill.wire.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tidemill.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.generated.delete_groups import DeleteGroupsRequest
from tidemill.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidemill.wire.generated.describe_cluster import DescribeClusterRequest
from tidemill.wire.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from tidemill.wire.generated.describe_groups import DescribeGroupsRequest
from tidemill.wire.generated.describe_log_dirs import DescribeLogDirsRequest
from tidemill.wire.generated.describe_producers import DescribeProducersRequest, TopicRequest
from tidemill.wire.generated.describe_quorum import DescribeQuorumRequest
from tidemill.wire.generated.describe_transactions import DescribeTransactionsRequest
from tidemill.wire.generated.end_txn import EndTxnRequest
from tidemill.wire.generated.init_producer_id import InitProducerIdRequest
from tidemill.wire.generated.list_config_resources import ListConfigResourcesRequest
from tidemill.wire.generated.list_groups import ListGroupsRequest
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from tidemill.wire.generated.list_transactions import ListTransactionsRequest
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.generated.offset_delete import OffsetDeleteRequest
from tidemill.wire.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.wire.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidemill.wire.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tidemill.wire.headers import parse_response_header
from tidemill.wire.primitives import Reader

ERROR = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not today")
FIRST_LOG_DIRS_WITH_ERROR = 3


def of_partitions(response):
    return response.topics[0].partitions[0]


CASES = [
    (
        list_offsets,
        ListOffsetsRequest(
            topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition()])]
        ),
        of_partitions,
    ),
    (
        offset_for_leader_epoch,
        OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition()])]
        ),
        of_partitions,
    ),
    (init_producer_id, InitProducerIdRequest(), lambda response: response),
    (end_txn, EndTxnRequest(), lambda response: response),
    (add_offsets_to_txn, AddOffsetsToTxnRequest(), lambda response: response),
    (list_transactions, ListTransactionsRequest(), lambda response: response),
    (
        describe_transactions,
        DescribeTransactionsRequest(transactional_ids=["pay"]),
        lambda response: response.transaction_states[0],
    ),
    (
        txn_offset_commit,
        TxnOffsetCommitRequest(
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="t", partitions=[TxnOffsetCommitRequestPartition()]
                )
            ]
        ),
        of_partitions,
    ),
    (
        write_txn_markers,
        WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])])
            ]
        ),
        lambda response: response.markers[0].topics[0].partitions[0],
    ),
    (
        create_topics,
        CreateTopicsRequest(topics=[CreatableTopic(name="t")]),
        lambda response: response.topics[0],
    ),
    (
        delete_topics,
        DeleteTopicsRequest(topic_names=["t"]),
        lambda response: response.responses[0],
    ),
    (
        delete_topics,
        DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]),
        lambda response: response.responses[0],
    ),
    (
        create_partitions,
        CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t")]),
        lambda response: response.results[0],
    ),
    (
        delete_records,
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition()])]
        ),
        of_partitions,
    ),
    (
        describe_configs,
        DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_name="t")]),
        lambda response: response.results[0],
    ),
    (
        alter_configs,
        alter_messages.AlterConfigsRequest(
            resources=[alter_messages.AlterConfigsResource(resource_name="t")]
        ),
        lambda response: response.responses[0],
    ),
    (
        incremental_alter_configs,
        incremental_messages.IncrementalAlterConfigsRequest(
            resources=[incremental_messages.AlterConfigsResource(resource_name="t")]
        ),
        lambda response: response.responses[0],
    ),
    (
        describe_topic_partitions,
        topic_partitions_messages.DescribeTopicPartitionsRequest(
            topics=[topic_partitions_messages.TopicRequest(name="t")]
        ),
        lambda response: response.topics[0],
    ),
    (
        alter_replica_log_dirs,
        log_dirs_messages.AlterReplicaLogDirsRequest(
            dirs=[
                log_dirs_messages.AlterReplicaLogDir(
                    topics=[log_dirs_messages.AlterReplicaLogDirTopic(partitions=[0])]
                )
            ]
        ),
        lambda response: response.results[0].partitions[0],
    ),
    (describe_quorum, DescribeQuorumRequest(), lambda response: response),
    (list_config_resources, ListConfigResourcesRequest(), lambda response: response),
    (list_partition_reassignments, ListPartitionReassignmentsRequest(), lambda response: response),
    (describe_cluster, DescribeClusterRequest(), lambda response: response),
    (
        describe_producers,
        DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])]),
        of_partitions,
    ),
    (describe_log_dirs, DescribeLogDirsRequest(topics=None), lambda response: response),
    (
        offset_commit,
        OffsetCommitRequest(
            topics=[OffsetCommitRequestTopic(partitions=[OffsetCommitRequestPartition()])]
        ),
        of_partitions,
    ),
    (offset_delete, OffsetDeleteRequest(), lambda response: response),
    (
        delete_groups,
        DeleteGroupsRequest(groups_names=["g"]),
        lambda response: response.results[0],
    ),
    (list_groups, ListGroupsRequest(), lambda response: response),
    (describe_groups, DescribeGroupsRequest(groups=["g"]), lambda response: response.groups[0]),
]


def refused(handler, request, version):
    """The answer as the client decodes it."""
    bound = BoundHandler(handler)
    frame = b"".join(bound.encode(handler.refuse(request, ERROR), version, 1))[4:]
    spec = API_SPECS[handler.api_key]
    _, position = parse_response_header(frame, spec=spec, version=version)
    reader = Reader(frame, pos=position)
    response = load(handler.api_key)[1].read(reader, version)
    reader.finish()
    return response


@pytest.mark.parametrize(
    ("module", "request_", "entry_of"), CASES, ids=[type(case[1]).__name__ for case in CASES]
)
def test_a_refused_request_gets_the_error_code_in_every_version(module, request_, entry_of):
    handler = module.HANDLER
    first, last = handler.versions
    if handler is describe_log_dirs.HANDLER:
        first = FIRST_LOG_DIRS_WITH_ERROR  # older versions have only an empty list
    for version in range(first, last + 1):
        entry = entry_of(refused(handler, request_, version))
        assert entry.error_code == ERROR.code
