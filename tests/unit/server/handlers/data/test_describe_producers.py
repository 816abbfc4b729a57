from __future__ import annotations

from tests.unit.server.one_broker import NOW_MS
from tidemill.core.errors import ErrorCode
from tidemill.server.handlers.data import describe_producers
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.describe_producers import DescribeProducersRequest, TopicRequest


def describe(broker, name="t", indexes=(0,)):
    topics = [TopicRequest(name=name, partition_indexes=list(indexes))]
    return broker.call(DescribeProducersRequest(topics=topics), 0).topics[0].partitions


def test_active_producers_are_told_with_epoch_and_last_sequence(broker):
    broker.make_topic("t")
    broker.append("t", 1000, 1001, producer_id=7, producer_epoch=2, base_sequence=0)
    broker.append("t", 1002, producer_id=9, producer_epoch=0, base_sequence=4)

    (entry,) = describe(broker)

    assert entry.error_code == ErrorCode.NONE
    assert [
        (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp)
        for one in entry.active_producers
    ] == [(7, 2, 1, NOW_MS), (9, 0, 4, NOW_MS)]
    assert {one.current_txn_start_offset for one in entry.active_producers} == {-1}


def test_producers_without_an_id_are_not_remembered(broker):
    broker.make_topic("t")
    broker.append("t", 1000)
    assert describe(broker)[0].active_producers == []


def test_partitions_are_refused_one_by_one(broker):
    broker.make_topic("t")
    good, bad = describe(broker, indexes=(0, 5))
    assert (good.error_code, bad.error_code) == (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
    assert bad.error_message


def test_it_needs_permission_to_read_the_topic(broker):
    broker.make_topic("t")
    broker.permissions.deny(Operation.READ, "t")
    assert describe(broker)[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_S11_an_answer_is_bounded_and_says_so(broker, monkeypatch):
    broker.make_topic("t")
    broker.append("t", 1000, producer_id=7, producer_epoch=0, base_sequence=0)
    monkeypatch.setattr(describe_producers, "PRODUCERS_PER_ANSWER_MAX", 1)
    told, refused = describe(broker, indexes=(0, 0))
    assert (told.error_code, len(told.active_producers)) == (ErrorCode.NONE, 1)
    assert (refused.error_code, refused.active_producers) == (ErrorCode.INVALID_REQUEST, [])


def test_a_view_has_no_producers_though_its_base_has(broker):
    broker.make_topic("t")
    broker.make_topic("t.some", partitions=-1, overrides={"tidemill.view.of": "t"})
    broker.append("t", 1000, producer_id=7, producer_epoch=0, base_sequence=0)
    (entry,) = describe(broker, "t.some")
    assert (entry.error_code, entry.active_producers) == (ErrorCode.NONE, [])
