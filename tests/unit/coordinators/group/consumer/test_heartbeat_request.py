"""Heartbeats that are refused, one test per reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.consumer_desk import (
    CONFIG,
    Client,
    ConsumerDesk,
    beat_request,
    join_request,
    listed,
    settle,
)
from tidemill.core.errors import ErrorCode
from tidemill.core.limits import CONSUMER_NAME_CHARS_MAX, CONSUMER_SUBSCRIPTION_CHARS_MAX


@pytest.fixture
def desk() -> ConsumerDesk:
    return ConsumerDesk({"t": 4})


INVALID = {
    "no member id since version 1": join_request(""),
    "a blank member id": join_request(" "),
    "no member id when going on": beat_request("", 1),
    "no group": join_request(group_id=""),
    "an empty instance id": join_request(instance_id=""),
    "an empty rack": join_request(rack_id=" "),
    "no rebalance timeout when joining": join_request(rebalance_timeout_ms=-1),
    "a negative rebalance timeout": join_request(rebalance_timeout_ms=-5),
    "nothing said about owned partitions when joining": join_request(topic_partitions=None),
    "no subscription when joining": join_request(subscribed_topic_names=None),
    "a static leave without an instance id": beat_request("m", -2),
    "an epoch that does not exist": beat_request("m", -3),
    "S41 a member id without end": join_request("m" * (CONSUMER_NAME_CHARS_MAX + 1)),
    "S41 an instance id without end": join_request(instance_id="i" * 2_000),
    "S41 a subscription without end": join_request(
        "m", *["t" * 249] * (CONSUMER_SUBSCRIPTION_CHARS_MAX // 249 + 1)
    ),
}


@pytest.mark.parametrize("request_", INVALID.values(), ids=INVALID.keys())
def test_T48_request_that_no_member_could_send_is_invalid(desk, request_):
    assert desk.refusal(request_) is ErrorCode.INVALID_REQUEST


def test_T48_member_that_joins_with_partitions_is_invalid(desk):
    owned = listed({(desk.topic_id("t"), 0)})
    assert desk.refusal(join_request(topic_partitions=owned)) is ErrorCode.INVALID_REQUEST


def test_T48_version_0_is_given_a_member_id(desk):
    response = desk.beat(join_request(""), version=0)
    assert response.member_id == "made-by-the-broker"


def test_T48_unknown_assignor_is_refused(desk):
    assert desk.refusal(join_request(server_assignor="cosmic")) is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_T48_empty_regular_expression_is_no_subscription_by_one(desk):
    """librdkafka sends an empty expression to withdraw the previous one."""
    assert desk.refusal(join_request(subscribed_topic_regex="")) is ErrorCode.NONE


@pytest.mark.parametrize("epoch", [1, -1])
def test_T48_unknown_member_is_refused(desk, epoch):
    assert desk.refusal(beat_request("m", epoch)) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("epoch", [1, -1, -2])
def test_T48_instance_id_without_a_holder_is_unknown(desk, epoch):
    request = beat_request("m", epoch, instance_id="i")
    assert desk.refusal(request) is ErrorCode.UNKNOWN_MEMBER_ID


def test_T48_epoch_ahead_of_the_group_is_fenced(desk):
    desk.beat(join_request())
    assert desk.refusal(beat_request("m", 2)) is ErrorCode.FENCED_MEMBER_EPOCH


def test_T48_epoch_long_past_is_fenced(desk):
    one, other = Client(desk, "m", ["t"]), Client(desk, "n", ["t"])
    settle(one)
    settle(one, other)
    other.leave()
    settle(one)
    assert one.epoch == 3
    assert desk.refusal(beat_request("m", 1, topic_partitions=[])) is ErrorCode.FENCED_MEMBER_EPOCH


def test_T48_previous_epoch_is_accepted_from_a_member_that_owns_no_more_than_it_was_told(
    desk,
):
    client = Client(desk, "m", ["t"])
    settle(client)
    desk.put_topic("t", 5)
    client.beat(is_lost=True)

    response = desk.beat(beat_request("m", 1, topic_partitions=listed(client.reading)))

    assert response.member_epoch == 2
    assert response.assignment is not None
    assert len(desk.names(response.assignment)) == 5


@pytest.mark.parametrize("said", ["nothing", "more"])
def test_T48_previous_epoch_is_fenced_if_the_member_may_own_more(desk, said):
    client = Client(desk, "m", ["t"])
    settle(client)
    desk.put_topic("t", 5)
    client.beat(is_lost=True)
    more = listed({(desk.topic_id("t"), 9)})
    request = beat_request("m", 1, topic_partitions=None if said == "nothing" else more)
    assert desk.refusal(request) is ErrorCode.FENCED_MEMBER_EPOCH


def test_T48_instance_id_of_a_live_member_is_unreleased(desk):
    desk.beat(join_request("m", instance_id="i"))
    request = join_request("n", instance_id="i")
    assert desk.refusal(request) is ErrorCode.UNRELEASED_INSTANCE_ID


@pytest.mark.parametrize("epoch", [1, -1, -2])
def test_T48_former_holder_of_an_instance_id_is_fenced(desk, epoch):
    desk.beat(join_request("m", instance_id="i"))
    desk.beat(beat_request("m", -2, instance_id="i"))
    desk.beat(join_request("n", instance_id="i"))
    request = beat_request("m", epoch, instance_id="i")
    assert desk.refusal(request) is ErrorCode.FENCED_INSTANCE_ID


def test_T48_member_that_left_temporarily_must_join_again(desk):
    desk.beat(join_request("m", instance_id="i"))
    desk.beat(beat_request("m", -2, instance_id="i"))
    request = beat_request("m", 1, instance_id="i")
    assert desk.refusal(request) is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(("first", "then"), [("i", None), (None, "i"), ("i", "j")])
def test_T48_member_keeps_its_instance_id_when_it_joins_again(desk, first, then):
    desk.beat(join_request("m", instance_id=first))
    assert desk.refusal(join_request("m", instance_id=then)) is ErrorCode.INVALID_REQUEST


def test_S38_full_group_admits_only_its_members():
    desk = ConsumerDesk({"t": 4}, replace(CONFIG, group_max_size=2))
    desk.beat(join_request("m"))
    desk.beat(join_request("n", instance_id="i"))
    assert desk.refusal(join_request("o")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.refusal(join_request("o", instance_id="j")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.refusal(join_request("m")) is ErrorCode.NONE
    desk.beat(beat_request("n", -2, instance_id="i"))
    assert desk.refusal(join_request("o", instance_id="i")) is ErrorCode.NONE


def test_refused_heartbeat_changes_nothing(desk):
    desk.beat(join_request("m", instance_id="i"))
    before = desk.describe()
    desk.refusal(join_request("n", instance_id="i"))
    desk.refusal(beat_request("m", 7))
    assert desk.describe() == before
