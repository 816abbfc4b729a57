"""APIs of larger clusters, as one node answers them: quorum, reassignments, directories."""

from __future__ import annotations

import pytest

from tests.unit.server.one_broker import ADVERTISED, NODE_ID
from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tidemill.wire.generated.describe_quorum import (
    DescribeQuorumRequest,
    RequestPartitionData,
    RequestTopicData,
)
from tidemill.wire.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

CLUSTER = "kafka-cluster"


def quorum(broker, version=2, name="__cluster_metadata"):
    topic = RequestTopicData(topic_name=name, partitions=[RequestPartitionData(partition_index=0)])
    return broker.call(DescribeQuorumRequest(topics=[topic]), version)


@pytest.mark.parametrize("version", range(3))
def test_the_controller_is_the_leader_and_the_only_voter(broker, version):
    broker.join_broker(9)
    answer = quorum(broker, version)
    (partition,) = answer.topics[0].partitions
    assert (answer.error_code, partition.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert (partition.leader_id, partition.leader_epoch) == (NODE_ID, broker.image.controller_epoch)
    assert [one.replica_id for one in partition.current_voters] == [NODE_ID]
    assert [one.replica_id for one in partition.observers] == [9]


def test_the_newest_version_names_the_nodes_addresses(broker):
    (node,) = quorum(broker).nodes
    assert node.node_id == NODE_ID
    assert [(one.host, one.port) for one in node.listeners] == [tuple(ADVERTISED)]


def test_there_is_no_other_quorum(broker):
    broker.make_topic("orders")
    (partition,) = quorum(broker, name="orders").topics[0].partitions
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("topics", "partitions"), [(0, 1), (1, 0), (1, 2), (2, 1)])
def test_S11_one_request_asks_for_one_quorum(broker, topics, partitions):
    asked = RequestTopicData(
        topic_name="__cluster_metadata", partitions=[RequestPartitionData()] * partitions
    )
    answer = broker.call(DescribeQuorumRequest(topics=[asked] * topics), 2)
    assert (answer.error_code, answer.topics) == (ErrorCode.INVALID_REQUEST, [])


def test_the_quorum_is_for_those_who_may_describe_the_cluster(broker):
    broker.permissions.deny(Operation.DESCRIBE, CLUSTER)
    assert quorum(broker).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("named", [False, True])
def test_no_partition_is_being_moved(broker, named):
    broker.make_topic("orders")
    topics = [ListPartitionReassignmentsTopics(name="orders", partition_indexes=[0])]
    request = ListPartitionReassignmentsRequest(topics=topics if named else None)
    answer = broker.call(request, 0)
    assert (answer.error_code, answer.topics) == (ErrorCode.NONE, [])


def test_reassignments_are_for_those_who_may_describe_the_cluster(broker):
    broker.permissions.deny(Operation.DESCRIBE, CLUSTER)
    answer = broker.call(ListPartitionReassignmentsRequest(topics=None), 0)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def move(broker, path, version=2):
    topic = AlterReplicaLogDirTopic(name="orders", partitions=[0, 7])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
    (result,) = broker.call(request, version).results
    return [(one.partition_index, one.error_code) for one in result.partitions]


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_cannot_move_because_there_is_one_directory(broker, version):
    broker.make_topic("orders")
    missing = ErrorCode.LOG_DIR_NOT_FOUND
    assert move(broker, "/elsewhere", version) == [(0, missing), (7, missing)]


def test_a_replica_may_stay_where_it_is(broker):
    broker.make_topic("orders")
    answer = move(broker, broker.config.data_dir)
    assert answer == [(0, ErrorCode.NONE), (7, ErrorCode.REPLICA_NOT_AVAILABLE)]


def test_moving_replicas_is_for_those_who_may_alter_the_cluster(broker):
    broker.permissions.deny(Operation.ALTER, CLUSTER)
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert move(broker, broker.config.data_dir) == [(0, denied), (7, denied)]
