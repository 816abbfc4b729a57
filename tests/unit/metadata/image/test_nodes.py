from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.core.ids import TopicId
from tidemill.metadata.image import nodes
from tidemill.metadata.image.metadata_image import BrokerImage, PartitionImage
from tidemill.metadata.image.nodes import BadNode
from tidemill.metadata.store.coord import Node

TOPIC_ID = TopicId(UUID(int=7))
PARTITION = PartitionImage(
    leader=1, leader_epoch=5, replicas=(1, 2, 3), isr=(1, 2), elr=(3,), last_known_leader=1
)


def test_a_partition_survives_the_round_trip_with_the_version_as_its_epoch():
    node = Node(nodes.encode_partition(PARTITION), 9)
    decoded = nodes.decode_partition("/p", node, (1, 2, 3))
    assert decoded.partition_epoch == 9
    assert decoded.isr == (1, 2)
    assert decoded.elr == (3,)
    assert (decoded.leader, decoded.leader_epoch, decoded.last_known_leader) == (1, 5, 1)


def test_a_topic_survives_the_round_trip():
    value = nodes.encode_topic(TOPIC_ID, ((1, 2), (2, 3)), {"retention.ms": "5"})
    stored = nodes.decode_topic("/topics/orders", Node(value, 3))
    assert stored == ("orders", TOPIC_ID, ((1, 2), (2, 3)), {"retention.ms": "5"}, 3)


def test_a_broker_survives_the_round_trip():
    broker = BrokerImage(broker_id=4, epoch=8, host="h", port=9092, rack="r")
    assert nodes.decode_broker("/brokers/4", Node(nodes.encode_broker(broker), 0)) == broker


def test_the_other_nodes_survive_the_round_trip():
    assert nodes.decode_controller("/c", Node(nodes.encode_controller(3, 9), 0)) == (3, 9)
    assert nodes.decode_counter("/n", Node(nodes.encode_counter(1000), 0)) == 1000
    assert nodes.decode_cluster_id("/x", Node(nodes.encode_cluster_id("aB_-1"), 0)) == "aB_-1"


@pytest.mark.parametrize(
    "path",
    [
        "/partitions/x/0",
        f"/partitions/{TOPIC_ID}/x",
        f"/partitions/{TOPIC_ID}/-1",
        f"/partitions/{TOPIC_ID}/01",
        f"/partitions/{TOPIC_ID}/0/0",
        "/partitions/------------------------------------/0",
    ],
)
def test_a_path_that_is_not_ours_is_not_a_partition(path):
    assert nodes.try_partition(path) is None


def test_paths_give_back_what_they_were_made_from():
    assert nodes.try_partition(nodes.partition_path(TOPIC_ID, 12)) == (TOPIC_ID, 12)
    assert nodes.try_broker_id(nodes.broker_path(3)) == 3
    assert nodes.try_topic_name(nodes.topic_path("a.b")) == "a.b"


@pytest.mark.parametrize("path", ["/topics/..", "/topics/a/b", "/topics/", "/topics/a\n"])
def test_S8_a_path_with_an_illegal_topic_name_is_not_a_topic(path):
    assert nodes.try_topic_name(path) is None


GOOD_PARTITION = b'{"v":1,"leader":1,"epoch":5,"isr":[1,2],"elr":[3],"last":1}'


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b" " * (nodes.NODE_BYTES_MAX + 1),
        GOOD_PARTITION.replace(b'"v":1', b'"v":2'),
        GOOD_PARTITION.replace(b'"epoch":5', b'"epoch":-1'),
        GOOD_PARTITION.replace(b'"epoch":5', b'"epoch":true'),
        GOOD_PARTITION.replace(b'"epoch":5', b'"epoch":2147483648'),
        GOOD_PARTITION.replace(b'"epoch":5', b'"epoch":' + b"9" * 5000),
        GOOD_PARTITION.replace(b'"epoch":5', b'"epoch":5.0'),
        GOOD_PARTITION.replace(b"[1,2]", b"[1,1]"),
        GOOD_PARTITION.replace(b"[1,2]", b"[1,9]"),
        GOOD_PARTITION.replace(b"[1,2]", b'[1,"2"]'),
        GOOD_PARTITION.replace(b"[1,2]", b"[2]"),
        GOOD_PARTITION.replace(b"[3]", b"[2]"),
        GOOD_PARTITION.replace(b"[3]", b"3"),
    ],
)
def test_S46_a_partition_node_that_we_did_not_write_is_bad(value):
    assert nodes.decode_partition("/p", Node(GOOD_PARTITION, 0), (1, 2, 3)).leader == 1
    with pytest.raises(BadNode):
        nodes.decode_partition("/p", Node(value, 0), (1, 2, 3))


@pytest.mark.parametrize(
    "value",
    [
        b'{"v":1,"id":"x","replicas":[[1]],"overrides":{}}',
        b'{"v":1,"id":"00000000-0000-0000-0000-000000000007","replicas":[],"overrides":{}}',
        b'{"v":1,"id":"00000000-0000-0000-0000-000000000007","replicas":[[]],"overrides":{}}',
        b'{"v":1,"id":"00000000-0000-0000-0000-000000000007","replicas":[[1,1]],"overrides":{}}',
        b'{"v":1,"id":"00000000-0000-0000-0000-000000000007","replicas":[[1]],"overrides":{"a":1}}',
        b'{"v":1,"id":"00000000-0000-0000-0000-000000000007","replicas":[[1]],"overrides":[]}',
        b'{"v":1,"id":7,"replicas":[[1]],"overrides":{}}',
    ],
)
def test_S46_a_topic_node_that_we_did_not_write_is_bad(value):
    with pytest.raises(BadNode):
        nodes.decode_topic("/topics/t", Node(value, 0))


def test_S46_bad_paths_and_ids_are_bad_nodes():
    broker = nodes.encode_broker(BrokerImage(broker_id=4, epoch=8, host="h", port=9092))
    with pytest.raises(BadNode):
        nodes.decode_broker("/brokers/x", Node(broker, 0))
    with pytest.raises(BadNode):
        nodes.decode_broker("/brokers/9999999999", Node(broker, 0))
    with pytest.raises(BadNode):
        nodes.decode_topic("/topics/..", Node(b"{}", 0))
    with pytest.raises(BadNode):
        nodes.decode_cluster_id("/cluster", Node(nodes.encode_cluster_id("../x"), 0))
