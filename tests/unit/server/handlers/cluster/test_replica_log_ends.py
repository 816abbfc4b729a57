"""Where logs end, as a broker tells the controller while their partitions have no leader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.server.one_broker import NODE_ID, NOW_MS, Peer
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import NO_LEADER
from tidemill.wire.generated.replica_log_ends import (
    AskedLogPartition,
    AskedLogTopic,
    ReplicaLogEndsRequest,
)

OTHER = 9


@pytest.fixture
def broker(broker):
    """With a log of two records of epoch 0, and no leader in epoch 1."""
    broker.join_broker(OTHER)
    broker.make_topic("orders", -1, assignments={0: [NODE_ID, OTHER]})
    broker.append("orders", NOW_MS, NOW_MS)
    partition = broker.partition("orders")
    partition.become_follower(replace(partition.image, leader=NO_LEADER, leader_epoch=1))
    return broker


def ask(broker, *, leader_epoch=1, peer=None, **fields):
    topic_id = broker.partition("orders").topic_id
    asked = AskedLogPartition(partition_index=0, leader_epoch=leader_epoch)
    usual = {"broker_id": NODE_ID, "broker_epoch": broker.cluster.broker_epoch}
    topics = [AskedLogTopic(topic_id=topic_id, partitions=[asked])]
    request = ReplicaLogEndsRequest(topics=topics, **{**usual, **fields})
    return broker.call(request, 0, peer)


def told(answer):
    assert answer.error_code == ErrorCode.NONE
    (one,) = answer.topics[0].partitions
    return ErrorCode(one.error_code), one.last_epoch, one.end_offset


def test_a_log_ends_after_its_last_record_in_the_epoch_of_that_record(broker):
    assert told(ask(broker)) == (ErrorCode.NONE, 0, 2)


def test_an_epoch_in_which_nothing_was_written_does_not_make_a_log_longer(broker):
    partition = broker.partition("orders")
    broker.lead_again("orders")
    partition.become_follower(replace(partition.image, leader=NO_LEADER, leader_epoch=3))
    assert told(ask(broker, leader_epoch=3)) == (ErrorCode.NONE, 0, 2)


def test_nothing_is_told_of_a_log_that_may_still_change(broker):
    partition = broker.partition("orders")
    partition.as_follower.is_being_cut = True
    assert told(ask(broker))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.as_follower.is_being_cut = False
    broker.lead_again("orders")
    assert told(ask(broker, leader_epoch=2))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_I15_nothing_is_told_in_another_leader_epoch(broker):
    assert told(ask(broker, leader_epoch=0))[0] is ErrorCode.FENCED_LEADER_EPOCH
    assert told(ask(broker, leader_epoch=2))[0] is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_I15_nothing_is_told_for_another_life_or_another_broker(broker):
    epoch = broker.cluster.broker_epoch
    assert ask(broker, broker_epoch=epoch - 1).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert ask(broker, broker_id=OTHER).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_nothing_is_told_of_a_log_on_a_failed_disk(broker):
    broker.partition("orders").go_offline()
    assert told(ask(broker))[0] is ErrorCode.KAFKA_STORAGE_ERROR


def test_S31_only_brokers_are_told(broker):
    class Client(Peer):
        is_internal = False

    refused = ask(broker, peer=Client())
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
