from __future__ import annotations

import pytest

from tests.support.fake_cluster import HOST, SILENCE, FakeCluster
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.admin.cluster_admin import take_cluster_snapshot
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_cluster import DescribeClusterResponse
from tidemill.wire.generated.list_partition_reassignments import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

MOVE = OngoingPartitionReassignment(
    partition_index=0, replicas=[2, 1], adding_replicas=[2], removing_replicas=[1]
)


def moving(_request, _version):
    topic = OngoingTopicReassignment(name="t", partitions=[MOVE])
    return ListPartitionReassignmentsResponse(error_message=None, topics=[topic])


def cluster_of_two() -> FakeCluster:
    """Broker 1 is the controller."""
    cluster = FakeCluster(brokers=2)
    for broker in cluster.brokers.values():
        broker.handlers[ApiKey.LIST_PARTITION_REASSIGNMENTS] = moving
        broker.handlers[ApiKey.DESCRIBE_CLUSTER] = lambda _request, _version: (
            DescribeClusterResponse(error_message=None)
        )
    return cluster


def dead(cluster):
    del cluster.net.servers[HOST, cluster.brokers[1].port]


def frozen(cluster):
    for key in cluster.brokers[1].handlers:
        cluster.brokers[1].handlers[key] = lambda _request, _version: SILENCE


def without_office(cluster):
    cluster.controller_id = -1


@pytest.mark.parametrize(
    ("befalls", "silent"), [(dead, {1}), (frozen, {1}), (without_office, set())]
)
def test_a_cluster_without_a_controller_that_answers_is_described_by_the_others(befalls, silent):
    async def scenario():
        cluster = cluster_of_two()
        befalls(cluster)
        client = ClusterClient(cluster.net, [(HOST, cluster.brokers[2].port)])
        return await take_cluster_snapshot(client)

    snapshot = run_virtually(scenario())
    assert [one.broker_id for one in snapshot.brokers] == [1, 2]
    assert snapshot.silent == silent
    assert [move.adding for move in snapshot.moves] == [(2,)]
