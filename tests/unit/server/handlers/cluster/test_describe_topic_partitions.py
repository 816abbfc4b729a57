"""DescribeTopicPartitions: topics in order, page by page."""

from __future__ import annotations

import pytest

from tests.unit.server.one_broker import NODE_ID
from tidemill.core.errors import ErrorCode
from tidemill.server.handlers.cluster.describe_topic_partitions import PARTITIONS_MAX
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)


def ask(broker, *names, limit=2000, cursor=None):
    return broker.call(request_of(*names, limit=limit, cursor=cursor), 0)


def request_of(*names, limit=2000, cursor=None):
    return DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else RequestCursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def pages(broker, *names, limit):
    """The partitions of each page, until there is no cursor."""
    found, cursor = [], None
    while True:
        answer = ask(broker, *names, limit=limit, cursor=cursor)
        found.append([(t.name, p.partition_index) for t in answer.topics for p in t.partitions])
        if answer.next_cursor is None:
            return found
        cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)


def test_a_topic_is_described_with_its_leaders_and_operations(broker):
    made = broker.make_topic("orders", 2)
    (topic,) = ask(broker, "orders").topics
    assert (topic.name, topic.topic_id, topic.is_internal) == ("orders", made.topic_id, False)
    assert [(p.partition_index, p.leader_id) for p in topic.partitions] == [
        (0, NODE_ID),
        (1, NODE_ID),
    ]
    assert topic.partitions[0].eligible_leader_replicas == []
    assert topic.partitions[0].last_known_elr == []
    assert topic.topic_authorized_operations > 0


def test_names_come_in_order_and_once_each(broker):
    for name in ("b", "a", "c"):
        broker.make_topic(name)
    assert [topic.name for topic in ask(broker, "c", "a", "c").topics] == ["a", "c"]


def test_an_empty_list_means_all_topics(broker):
    broker.make_topic("a")
    broker.make_topic("b")
    assert [topic.name for topic in ask(broker).topics] == ["a", "b"]


@pytest.mark.parametrize("names", [(), ("a", "b", "c")], ids=["all", "named"])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_every_partition_is_on_exactly_one_page(broker, limit, names):
    for name in ("a", "b", "c"):
        broker.make_topic(name, 3)
    found = pages(broker, *names, limit=limit)
    assert [one for page in found for one in page] == [
        (name, index) for name in "abc" for index in range(3)
    ]
    assert all(len(page) == limit for page in found[:-1])


def test_a_page_that_ends_with_its_topic_points_to_the_next_one(broker):
    broker.make_topic("a", 2)
    broker.make_topic("b", 2)
    cursor = ask(broker, limit=2).next_cursor
    assert (cursor.topic_name, cursor.partition_index) == ("b", 0)


@pytest.mark.parametrize("limit", [-5, 0])
def test_a_limit_below_one_counts_as_one(broker, limit):
    broker.make_topic("a", 3)
    assert len(ask(broker, limit=limit).topics[0].partitions) == 1


def test_S11_no_answer_has_more_than_two_thousand_partitions(broker):
    broker.make_topic("a", PARTITIONS_MAX + 1)
    answer = ask(broker, limit=2**31 - 1)
    assert len(answer.topics[0].partitions) == PARTITIONS_MAX
    assert answer.next_cursor.partition_index == PARTITIONS_MAX


def test_S11_a_long_answer_is_made_in_slices(broker):
    for n in range(5):
        broker.make_topic(f"t{n}", 400)
    assert broker.turns_of(request_of(), 0) >= 4


def test_unknown_and_illegal_names_are_errors_of_their_own(broker):
    answer = ask(broker, "absent", "no/name")
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("no/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]


def test_a_cursor_of_a_topic_that_is_gone_goes_on_behind_it(broker):
    broker.make_topic("a")
    broker.make_topic("c")
    assert [topic.name for topic in ask(broker, cursor=("b", 1)).topics] == ["c"]


def test_a_cursor_behind_the_last_partition_goes_on_with_the_next_topic(broker):
    broker.make_topic("a", 2)
    broker.make_topic("b", 1)
    answer = ask(broker, cursor=("a", 9))
    assert [(t.name, len(t.partitions)) for t in answer.topics] == [("a", 0), ("b", 1)]


@pytest.mark.parametrize("cursor", [("b", 0), ("", 0), ("a", -1)])
def test_a_cursor_that_does_not_fit_the_request_is_refused(broker, cursor):
    broker.make_topic("a")
    (answer,) = ask(broker, "a", cursor=cursor).topics
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_T61_hidden_topics_are_left_out_of_all_but_refused_by_name(broker):
    broker.make_topic("secret", 2)
    broker.make_topic("open", 1)
    broker.permissions.deny(Operation.DESCRIBE, "secret")
    everything = ask(broker, limit=1)
    assert [topic.name for topic in everything.topics] == ["open"]
    assert everything.next_cursor is None
    (named,) = ask(broker, "secret").topics
    assert named.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert named.partitions == []
