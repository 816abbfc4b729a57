"""What tools for whole clusters ask of one node, through kafka-python's admin client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from tests.support.clients import kafka
from tests.support.topics import create_topic
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]


@pytest.fixture
def python_admin(shared_broker: BrokerProcess) -> Iterator[Any]:
    client = kafka.KafkaAdminClient(bootstrap_servers=shared_broker.bootstrap)
    yield client
    client.close()


def test_a_large_topic_is_described_page_by_page(python_admin, shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic, 5)
    found, cursor = [], None
    for _ in range(3):
        page = python_admin.describe_topic_partitions(
            [topic], response_partition_limit=2, cursor=cursor
        )
        found.append([one["partition_index"] for one in page["topics"][0]["partitions"]])
        cursor = page["next_cursor"]
    assert found == [[0, 1], [2, 3], [4]]
    assert cursor is None


def test_the_quorum_is_the_one_broker(python_admin):
    quorum = python_admin.describe_metadata_quorum()
    (partition,) = quorum["topics"][0]["partitions"]
    assert partition["leader_id"] == 0
    assert [voter["replica_id"] for voter in partition["current_voters"]] == [0]
    assert [node["node_id"] for node in quorum["nodes"]] == [0]


def test_topics_and_brokers_are_listed_as_configurable(python_admin, shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic, 1)
    listed = {
        str(kind).upper(): names for kind, names in python_admin.list_config_resources().items()
    }
    assert topic in listed["TOPIC"]
    assert listed["BROKER"] == ["0"]


def test_no_partition_is_being_moved(python_admin, shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic, 1)
    assert python_admin.list_partition_reassignments() == {}
    assert python_admin.list_partition_reassignments({topic: [0]}) == {}


def test_moving_a_replica_to_another_directory_is_refused(python_admin, shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic, 1)
    (answer,) = python_admin.alter_replica_log_dirs({(topic, 0, 0): "/elsewhere"}).values()
    assert answer is kafka.errors.LogDirNotFoundError


def test_a_topic_that_no_longer_exists_is_described_by_its_id_alone(
    python_admin, shared_broker, topic
):
    create_topic(shared_broker.bootstrap, topic, 1)
    (described,) = python_admin.describe_topics([topic])
    python_admin.delete_topics([topic])
    (gone,) = python_admin.describe_topics([UUID(described["topic_id"])])
    assert gone["name"] is None
