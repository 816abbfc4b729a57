"""Requests divided by owner, and their answers joined."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.core.config.endpoint import Endpoint
from tidemill.core.errors import ErrorCode
from tidemill.server.routing.divided_requests import (
    BY_LEADER,
    BY_NAMES,
    copied,
    divided_by_leader,
    divided_by_name,
    joined,
    joined_names,
)
from tidemill.server.routing.single_address import with_single_address
from tidemill.wire.api_keys import ApiKey, load
from tidemill.wire.generated.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from tidemill.wire.generated.describe_producers import DescribeProducersRequest, TopicRequest
from tidemill.wire.generated.fetch import LeaderIdAndEpoch
from tidemill.wire.generated.list_groups import ListedGroup, ListGroupsResponse
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

PRODUCE = BY_LEADER[ApiKey.PRODUCE]


def by_parity(_name: str, _topic_id: UUID, index: int) -> int:
    return index % 2


def produce(**topics: list[int]) -> ProduceRequest:
    return ProduceRequest(
        acks=-1,
        timeout_ms=77,
        topic_data=[
            TopicProduceData(name=name, partition_data=[PartitionProduceData(index=i) for i in of])
            for name, of in topics.items()
        ],
    )


def produced(**topics: list[int]) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name, partition_responses=[PartitionProduceResponse(index=i) for i in of]
            )
            for name, of in topics.items()
        ]
    )


def indexes(request: ProduceRequest) -> dict[str, list[int]]:
    return {topic.name: [one.index for one in topic.partition_data] for topic in request.topic_data}


def answered(response: ProduceResponse) -> list[tuple[str, list[int]]]:
    return [(one.name, [p.index for p in one.partition_responses]) for one in response.responses]


def test_each_owner_gets_its_partitions_and_everything_else_of_the_request():
    parts = divided_by_leader(produce(a=[0, 1, 2], b=[3]), PRODUCE, by_parity)
    assert {owner: indexes(part) for owner, part in parts.items()} == {
        0: {"a": [0, 2]},
        1: {"a": [1], "b": [3]},
    }
    assert all((part.acks, part.timeout_ms) == (-1, 77) for part in parts.values())


def test_a_topic_is_in_the_joined_answer_once():
    first, second = produced(a=[0, 2]), produced(a=[1], b=[3])
    second.throttle_time_ms = 9
    whole = joined([first, second], PRODUCE)
    assert answered(whole) == [("a", [0, 2, 1]), ("b", [3])]
    assert whole.throttle_time_ms == 9


def test_partitions_that_are_plain_numbers_are_divided_too():
    request = DescribeProducersRequest(topics=[TopicRequest(name="a", partition_indexes=[0, 1])])
    parts = divided_by_leader(request, BY_LEADER[ApiKey.DESCRIBE_PRODUCERS], by_parity)
    assert [part.topics[0].partition_indexes for part in parts.values()] == [[0], [1]]


def test_lists_of_groups_are_divided_and_joined():
    shape = BY_NAMES[ApiKey.DELETE_GROUPS]
    request = DeleteGroupsRequest(groups_names=["x", "yy", "z"])
    parts = divided_by_name(request, shape, len)
    assert {owner: part.groups_names for owner, part in parts.items()} == {1: ["x", "z"], 2: ["yy"]}
    answers = [
        DeleteGroupsResponse(results=[DeletableGroupResult(group_id=name)]) for name in ("x", "yy")
    ]
    assert [one.group_id for one in joined_names(answers, "results").results] == ["x", "yy"]


def test_the_first_error_of_several_brokers_is_told():
    answers = [
        ListGroupsResponse(groups=[ListedGroup(group_id="a")]),
        ListGroupsResponse(error_code=int(ErrorCode.COORDINATOR_NOT_AVAILABLE)),
    ]
    whole = joined_names(answers, "groups")
    assert whole.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert [one.group_id for one in whole.groups] == ["a"]


@pytest.mark.parametrize("api_key", [*BY_LEADER, *BY_NAMES])
def test_every_shape_has_fields_that_its_messages_have(api_key):
    request, response = (one() for one in load(api_key))
    shape = BY_LEADER.get(api_key)
    if shape is not None:
        assert getattr(request, shape.topics) == getattr(response, shape.answered_topics) == []
    else:
        named = BY_NAMES[api_key]
        assert getattr(request, named.names) == getattr(response, named.answers) == []


def test_a_copy_shares_what_it_does_not_change():
    request = produce(a=[0])
    copy = copied(request, acks=1)
    assert (copy.acks, request.acks) == (1, -1)
    assert copy.topic_data is request.topic_data


def test_leader_hints_do_not_leave_by_the_route():
    response = produced(a=[0])
    response.responses[0].partition_responses[0].current_leader = LeaderIdAndEpoch()
    with_single_address(response, 1, Endpoint("route", 9))
    assert response.responses[0].partition_responses[0].current_leader is None
