from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.consumer_group_describe import ConsumerGroupDescribeRequest
from tidemill.wire.generated.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest

GROUP = "readers"


@pytest.fixture
def groups(broker):
    broker.make_topic("orders-eu")
    broker.make_topic("orders-us")
    broker.call(FindCoordinatorRequest(key=GROUP), 3)
    return broker


def join(broker, pattern):
    request = ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="m",
        rebalance_timeout_ms=1000,
        subscribed_topic_names=[],
        subscribed_topic_regex=pattern,
        topic_partitions=[],
    )
    return broker.call(request, 1)


def topics_of(broker, response):
    return [broker.image.names[one.topic_id] for one in response.assignment.topic_partitions]


def test_T48_a_regular_expression_matches_only_topics_that_the_client_may_describe(groups):
    groups.permissions.deny(Operation.DESCRIBE, "orders-eu")
    assert topics_of(groups, join(groups, "orders-.*")) == ["orders-us"]


def test_S37_a_regular_expression_that_is_not_valid_is_refused_with_the_reason(groups):
    response = join(groups, "orders-(")
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "missing )" in response.error_message


@pytest.mark.parametrize("version", [0, 1])
def test_a_description_shows_the_regular_expression(groups, version):
    join(groups, "orders-.*")
    answer = groups.call(ConsumerGroupDescribeRequest(group_ids=[GROUP]), version)
    assert answer.groups[0].members[0].subscribed_topic_regex == "orders-.*"
