"""Metadata: brokers, topics and leaders, in every version."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.unit.server.one_broker import NODE_ID
from tidemill.core.errors import ErrorCode, StoreUnavailable
from tidemill.metadata.image.metadata_image import INTERNAL_TOPICS
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.metadata import MetadataRequest, MetadataRequestTopic

VERSIONS = range(14)


def _named(*names, **fields):
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **fields)


def _topics(answer):
    return {topic.name: topic for topic in answer.topics}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_described_with_its_leaders(broker, version):
    broker.make_topic("orders", 3)
    answer = broker.call(_named("orders"), version)
    topic = _topics(answer)["orders"]
    assert topic.error_code == ErrorCode.NONE
    assert [p.partition_index for p in topic.partitions] == [0, 1, 2]
    assert {p.leader_id for p in topic.partitions} == {NODE_ID}
    assert answer.brokers[0].node_id == NODE_ID


def test_T14_in_version_0_an_empty_list_means_all_topics(broker):
    broker.make_topic("a")
    broker.make_topic("b")
    assert set(_topics(broker.call(MetadataRequest(topics=[]), 0))) == {"a", "b"}


@pytest.mark.parametrize("version", range(1, 14))
def test_T14_null_means_all_topics_and_empty_means_none(broker, version):
    broker.make_topic("a")
    assert set(_topics(broker.call(MetadataRequest(topics=None), version))) == {"a"}
    assert broker.call(MetadataRequest(topics=[]), version).topics == []


@pytest.mark.parametrize("version", range(4, 14))
def test_T15_a_named_topic_is_created_unless_the_client_forbids_it(broker, version):
    forbidden = _named("new", allow_auto_topic_creation=False)
    refused = _topics(broker.call(forbidden, version))["new"]
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    made = _topics(broker.call(_named("new"), version))["new"]
    assert made.error_code == ErrorCode.NONE
    assert len(made.partitions) == 4


@pytest.mark.parametrize("version", VERSIONS)
def test_T15_a_store_that_fails_gives_each_new_topic_a_retriable_error(broker, version):
    async def fail(ops):
        raise StoreUnavailable("the disk is full")

    broker.make_topic("old")
    broker.session.multi = fail
    answered = _topics(broker.call(_named("old", "new"), version))
    assert answered["old"].error_code == ErrorCode.NONE
    assert answered["new"].error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_T15_a_request_for_all_topics_creates_none(broker):
    broker.call(MetadataRequest(topics=None), 12)
    assert not broker.image.topics


@pytest.mark.parametrize("name", [".", "..", "a/b", "x" * 250, "new line\n"])
def test_T16_an_illegal_name_is_refused_and_not_created(broker, name):
    answer = broker.call(_named(name), 12)
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert not broker.image.topics


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_naming_an_internal_topic_does_not_create_it(broker, name):
    answer = broker.call(_named(name), 12)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not broker.image.topics


def test_T17_a_topic_is_found_by_its_id_and_an_unknown_id_is_an_error(broker):
    made = broker.make_topic("orders")
    known = MetadataRequest(topics=[MetadataRequestTopic(topic_id=made.topic_id, name=None)])
    assert broker.call(known, 12).topics[0].name == "orders"
    unknown = MetadataRequest(topics=[MetadataRequestTopic(topic_id=UUID(int=9), name=None)])
    assert broker.call(unknown, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [12, 13])
def test_T17_the_answer_about_an_unknown_id_has_the_id_and_no_name(broker, version):
    unknown = MetadataRequest(topics=[MetadataRequestTopic(topic_id=UUID(int=9), name=None)])
    (answer,) = broker.call(unknown, version).topics
    assert (answer.name, answer.topic_id) == (None, UUID(int=9))


@pytest.mark.parametrize("version", [10, 11])
def test_T17_versions_10_and_11_do_not_look_up_by_id(broker, version):
    made = broker.make_topic("orders")
    asked = MetadataRequest(topics=[MetadataRequestTopic(topic_id=made.topic_id, name=None)])
    (answer,) = broker.call(asked, version).topics
    assert (answer.name, answer.error_code) == ("", ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("version", [12, 13])
def test_T61_the_name_of_a_hidden_topic_is_not_told_to_who_asks_by_id(broker, version):
    made = broker.make_topic("secret")
    broker.permissions.deny(Operation.DESCRIBE, "secret")
    asked = MetadataRequest(topics=[MetadataRequestTopic(topic_id=made.topic_id, name=None)])
    (answer,) = broker.call(asked, version).topics
    assert (answer.name, answer.topic_id) == (None, made.topic_id)


def test_T18_the_controller_is_the_live_broker(broker):
    assert broker.call(MetadataRequest(topics=[]), 12).controller_id == NODE_ID


def test_T22_a_topic_is_readable_right_after_its_creation(broker):
    broker.make_topic("t")
    assert _topics(broker.call(_named("t"), 12))["t"].error_code == ErrorCode.NONE


def test_T61_hidden_topics_are_left_out_of_all_but_refused_by_name(broker):
    broker.make_topic("secret")
    broker.permissions.deny(Operation.DESCRIBE, "secret")
    assert broker.call(MetadataRequest(topics=None), 12).topics == []
    named = broker.call(_named("secret"), 12).topics[0]
    assert named.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert named.partitions == []


def test_S39_the_topics_that_one_client_creates_by_asking_are_limited(broker):
    made = 0
    for start in range(0, 300, 50):
        names = [f"storm-{start + n}" for n in range(50)]
        answer = broker.call(_named(*names), 12)
        made += sum(topic.error_code == ErrorCode.NONE for topic in answer.topics)
    assert made == 100
    broker.clock.now_ms += 1000
    answer = broker.call(_named(*(f"later-{n}" for n in range(50))), 12)
    assert sum(topic.error_code == ErrorCode.NONE for topic in answer.topics) == 10


def test_S11_many_topics_are_described_in_slices(broker):
    for n in range(101):
        broker.make_topic(f"t{n}")
    assert broker.turns_of(MetadataRequest(topics=None), 12) >= 2


def test_S11_many_unknown_names_are_answered_in_slices(broker):
    names = [f"unknown-{n}" for n in range(301)]
    request = _named(*names, allow_auto_topic_creation=False)
    assert broker.turns_of(request, 12) >= 3


@pytest.mark.parametrize("version", VERSIONS)
def test_S11_a_topic_that_is_named_many_times_is_described_once(broker, version):
    broker.make_topic("orders")
    answer = broker.call(_named("orders", "absent", "orders", "absent"), version)
    assert [topic.name for topic in answer.topics] == ["orders", "absent"]


def test_S11_an_id_that_is_named_many_times_is_described_once(broker):
    made = broker.make_topic("orders")
    asked = [MetadataRequestTopic(topic_id=made.topic_id, name=None)] * 3
    answer = broker.call(MetadataRequest(topics=asked), 12)
    assert [topic.name for topic in answer.topics] == ["orders"]


def test_S11_large_topics_count_for_several(broker):
    for n in range(3):
        broker.make_topic(f"large-{n}", 1_000)
    assert broker.turns_of(_named("large-0", "large-1", "large-2"), 12) >= 3


def test_a_few_small_topics_are_described_at_once(broker):
    broker.make_topic("orders", 3)
    answer, _ = broker.start(_named("orders"), 12)
    assert [topic.name for topic in answer.topics] == ["orders"]


def test_clients_are_not_sent_to_a_leader_that_was_just_lost(broker):
    broker.join_broker(NODE_ID + 1)
    broker.make_topic("t", 2)
    leaders = {one.leader_id for one in broker.call(_named("t"), 12).topics[0].partitions}
    assert leaders == {NODE_ID, NODE_ID + 1}
    lost = broker.services.lost_leaders
    lost.lost(NODE_ID + 1, broker.clock.monotonic())
    partitions = broker.call(_named("t"), 12).topics[0].partitions
    assert {one.leader_id: one.error_code for one in partitions} == {
        NODE_ID: ErrorCode.NONE,
        -1: ErrorCode.LEADER_NOT_AVAILABLE,
    }
    # Perhaps others reach it: the doubt ends by itself.
    broker.clock.now_ms += 1_000
    leaders = {one.leader_id for one in broker.call(_named("t"), 12).topics[0].partitions}
    assert leaders == {NODE_ID, NODE_ID + 1}


def test_an_answer_that_names_other_brokers_waits_for_what_the_loop_has_yet_to_take_in(broker):
    broker.join_broker(NODE_ID + 1)
    broker.make_topic("t", 2)
    assert broker.turns_of(_named("t"), 12) >= 3


def test_a_broker_without_a_lease_does_not_send_clients_back_to_itself(broker):
    broker.make_topic("t")
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    (led,) = broker.call(request, 12).topics[0].partitions
    assert (led.leader_id, led.error_code) == (NODE_ID, ErrorCode.NONE)
    broker.store.suspend(broker.session)
    (led,) = broker.call(request, 12).topics[0].partitions
    assert (led.leader_id, led.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
