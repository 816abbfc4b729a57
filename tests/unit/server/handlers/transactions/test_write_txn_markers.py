"""Markers of other brokers; those of strangers are refused."""

from __future__ import annotations

import pytest

from tests.unit.server.one_broker import Peer
from tests.unit.server.transaction_requests import (
    Producer,
    coordinate_transactions,
    fetched_offset,
    is_open,
    offsets_partition,
)
from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

COORDINATOR_EPOCH = 5


@pytest.fixture
def producer(broker):
    coordinate_transactions(broker)
    broker.make_topic("orders", 2)
    made = Producer(broker)
    made.init()
    made.add("orders", 0, 1)
    return made


def mark(broker, producer, topic="orders", *partitions, is_commit=True, **fields):
    marker = WritableTxnMarker(
        producer_id=producer.name.producer_id,
        producer_epoch=fields.pop("epoch", producer.name.epoch),
        transaction_result=is_commit,
        coordinator_epoch=fields.pop("coordinator_epoch", COORDINATOR_EPOCH),
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions or (0,)))],
        **fields,
    )
    answer = broker.call(WriteTxnMarkersRequest(markers=[marker]), 2)
    return [ErrorCode(one.error_code) for one in answer.markers[0].topics[0].partitions]


def test_a_marker_ends_the_transaction_in_its_partition_alone(broker, producer):
    producer.append("orders", 0)
    producer.append("orders", 1)
    assert mark(broker, producer) == [ErrorCode.NONE]
    assert (is_open(broker, "orders", 0), is_open(broker, "orders", 1)) == (False, True)


def test_S32_markers_of_strangers_are_refused(broker, producer, monkeypatch):
    producer.append("orders", 0)
    monkeypatch.setattr(Peer, "is_internal", False)
    assert mark(broker, producer) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    assert is_open(broker, "orders")


def test_S32_strangers_cannot_abort_what_a_coordinator_has_open(broker, producer, monkeypatch):
    producer.append("orders", 0)
    monkeypatch.setattr(Peer, "is_internal", False)
    assert mark(broker, producer, is_commit=False) == [ErrorCode.INVALID_TXN_STATE]
    assert is_open(broker, "orders")


@pytest.fixture
def hanging(broker, producer, monkeypatch):
    """A producer whose coordinator has forgotten that its transaction is open."""
    producer.append("orders", 0)
    (shard,) = [one for one in broker.transactions.shards() if list(one.transactions())]
    monkeypatch.setattr(shard, "transactions", lambda: iter(()))
    monkeypatch.setattr(Peer, "is_internal", False)
    return producer


def test_an_administrator_may_abort_what_no_coordinator_knows(broker, hanging):
    assert mark(broker, hanging, is_commit=False) == [ErrorCode.NONE]
    assert not is_open(broker, "orders")


def test_S32_a_stranger_may_commit_nothing_though_it_hangs(broker, hanging):
    assert mark(broker, hanging) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    assert is_open(broker, "orders")


def test_S32_aborting_what_hangs_needs_the_right_to_alter_the_cluster(broker, hanging):
    broker.permissions.deny(Operation.ALTER)
    assert mark(broker, hanging, is_commit=False) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    assert is_open(broker, "orders")


@pytest.mark.parametrize("epoch", [0, 2])
def test_only_the_epoch_that_hangs_is_aborted(broker, hanging, epoch):
    epoch += hanging.name.epoch - 1
    assert mark(broker, hanging, is_commit=False, epoch=epoch) == [ErrorCode.INVALID_TXN_STATE]
    assert is_open(broker, "orders")


def test_an_administrator_aborts_one_transaction_at_a_time(broker, hanging):
    codes = mark(broker, hanging, "orders", 0, 1, is_commit=False)
    assert codes == [ErrorCode.INVALID_REQUEST] * 2
    assert is_open(broker, "orders")


def test_S32_strangers_cannot_add_partitions_as_a_broker_does(broker, producer, monkeypatch):
    monkeypatch.setattr(Peer, "is_internal", False)
    before = broker.transactions.read(
        "pay", lambda shard, _now: shard.describe("pay"), lambda code: code
    )
    with pytest.raises(ValueError, match="unpack"):
        producer.verify("orders", 0, add=True)  # the whole request is refused: no result
    assert before == broker.transactions.read(
        "pay", lambda shard, _now: shard.describe("pay"), lambda code: code
    )


def test_a_marker_that_comes_twice_changes_nothing(broker, producer):
    producer.append("orders", 0)
    assert mark(broker, producer) == mark(broker, producer) == [ErrorCode.NONE]
    assert broker.partition("orders").log.log_end_offset == 2


def test_I22_a_marker_of_an_older_epoch_is_refused(broker, producer):
    second = Producer(broker)
    second.init()
    second.init()
    second.add("orders", 0)
    second.append("orders", 0)
    assert mark(broker, producer) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert is_open(broker, "orders")


def test_a_marker_for_a_partition_of_another_broker_is_refused(broker, producer):
    assert mark(broker, producer, "orders", 9) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert mark(broker, producer, "nowhere", 0) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_T55_a_marker_in_the_offsets_topic_shows_the_offsets(broker, producer):
    producer.add_offsets()
    producer.commit_offset("orders", 7)
    topic, index = offsets_partition(broker)
    assert mark(broker, producer, topic, index) == [ErrorCode.NONE]
    assert fetched_offset(broker, "orders") == 7


def test_many_markers_come_in_slices(broker, producer):
    broker.make_topic("wide", 600)
    marker = WritableTxnMarker(
        producer_id=7,
        topics=[WritableTxnMarkerTopic(name="wide", partition_indexes=list(range(600)))],
    )
    assert broker.turns_of(WriteTxnMarkersRequest(markers=[marker]), 2) > 1
