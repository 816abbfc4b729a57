from __future__ import annotations

import pytest

from tests.unit.server.group_requests import (
    FETCH_VERSIONS,
    FIRST_WITH_GROUPS,
    OFFSETS_TOPIC,
    commit,
    commit_request,
    fetch,
    fetch_request,
)
from tests.unit.server.one_broker import Peer, value_of
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.server.handlers.offsets import offset_fetch
from tidemill.server.request.authorizer import Operation

NOTHING = (-1, "", ErrorCode.NONE)


@pytest.fixture
def groups(broker):
    broker.make_topic(OFFSETS_TOPIC, 4)
    broker.make_topic("t")
    return broker


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_T45_a_committed_offset_is_sent_in_every_version(groups, version):
    commit(groups, 5)
    assert fetch(groups, version) == [(5, "m", ErrorCode.NONE)]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_T45_a_partition_without_an_offset_is_not_an_error(groups, version):
    assert fetch(groups, version) == [NOTHING]


@pytest.mark.parametrize("version", range(2, 11))
def test_T45_null_means_all_topics(groups, version):
    groups.make_topic("u")
    commit(groups, 5)
    assert fetch(groups, version, names=None) == [(5, "m", ErrorCode.NONE)]


@pytest.mark.parametrize("version", [7, 9])
def test_T45_every_offset_is_stable(groups, version):
    commit(groups, 5)
    assert fetch(groups, version, require_stable=True) == [(5, "m", ErrorCode.NONE)]


def test_several_groups_are_answered_together(groups):
    names = [f"group-{number}" for number in range(20)]
    for number, name in enumerate(names):
        commit(groups, number, group_id=name)
    response = groups.call(fetch_request(groups, groups=names), 9)
    found = {one.group_id: one.topics[0].partitions[0].committed_offset for one in response.groups}
    assert found == {name: number for number, name in enumerate(names)}


def test_S11_many_groups_are_asked_in_slices(groups):
    request = fetch_request(groups, groups=[f"group-{number}" for number in range(1_000)])
    assert groups.turns_of(request, 9) >= 3


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_broker_that_is_not_the_coordinator_refuses(broker, version):
    broker.make_topic("t")
    response = broker.call(fetch_request(broker, version), version)
    if version >= FIRST_WITH_GROUPS:
        code = response.groups[0].error_code
    elif version > 1:
        code = response.error_code
    else:
        code = response.topics[0].partitions[0].error_code
    assert code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", [7, 9])
@pytest.mark.parametrize("is_librdkafka", [False, True])
@pytest.mark.parametrize("is_stable", [False, True])
def test_librdkafka_hears_of_no_error_for_the_group_after_which_it_would_not_ask_again(
    broker, is_librdkafka, is_stable, version
):
    peer = Peer()
    peer.is_librdkafka = is_librdkafka
    broker.make_topic("t")  # this broker does not coordinate
    request = fetch_request(broker, version, require_stable=is_stable)
    answer = broker.call(request, version, peer)
    if version >= FIRST_WITH_GROUPS:
        answer = answer.groups[0]
    if is_librdkafka and is_stable:
        codes = [one.error_code for topic in answer.topics for one in topic.partitions]
        assert (answer.error_code, codes) == (0, [ErrorCode.UNSTABLE_OFFSET_COMMIT])
    else:
        assert answer.error_code == ErrorCode.NOT_COORDINATOR


@pytest.fixture
def waiting(broker):
    """The other replica of the offsets topic has not fetched a commit: reads wait for that."""
    broker.join_broker(2)
    broker.make_topic(OFFSETS_TOPIC, -1, assignments={0: [1, 2]})
    broker.make_topic("t", -1, assignments={0: [1]})
    broker.start_deferred(commit_request(broker, 5), 9)
    return broker


def test_I28_version_1_hears_of_a_coordinator_that_goes_while_it_waits(waiting):
    answer = waiting.start_deferred(fetch_request(waiting, 1), 1)
    waiting.groups.runtime.resign(0)
    waiting.partition(OFFSETS_TOPIC).become_follower(waiting.partition(OFFSETS_TOPIC).image)
    (topic,) = value_of(answer).topics
    assert [one.error_code for one in topic.partitions] == [ErrorCode.NOT_COORDINATOR]


def test_librdkafka_asks_again_after_a_commit_that_others_did_not_fetch_in_time(waiting):
    peer = Peer()
    peer.is_librdkafka = True
    answer = waiting.start_deferred(fetch_request(waiting, 9, require_stable=True), 9, peer)
    waiting.partition(OFFSETS_TOPIC).as_leader.fail_waiters(ErrorCode.REQUEST_TIMED_OUT)
    (found,) = value_of(answer).groups
    codes = [one.error_code for topic in found.topics for one in topic.partitions]
    assert (found.error_code, codes) == (0, [ErrorCode.UNSTABLE_OFFSET_COMMIT])


def test_one_group_that_may_not_be_described_is_refused_alone(groups):
    commit(groups, 5)
    groups.permissions.deny(Operation.DESCRIBE, "other")
    response = groups.call(fetch_request(groups, groups=["other", "g"]), 9)
    codes = {one.group_id: one.error_code for one in response.groups}
    assert codes == {"other": ErrorCode.GROUP_AUTHORIZATION_FAILED, "g": ErrorCode.NONE}


@pytest.mark.parametrize("version", [7, 9, 10])
def test_topics_that_may_not_be_described_are_refused_or_left_out(groups, version):
    groups.make_topic("secret")
    commit(groups, 5, names=("secret", "t"))
    groups.permissions.deny(Operation.DESCRIBE, "secret")
    codes = [code for _, _, code in fetch(groups, version, names=("secret", "t"))]
    assert sorted(codes) == [ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert fetch(groups, version, names=None) == [(5, "m", ErrorCode.NONE)]


def test_I34_a_recreated_topic_has_no_offsets(groups):
    commit(groups, 5)
    groups.run(groups.cluster.delete_topics([groups.image.topic("t").topic_id]))
    groups.make_topic("t")
    assert fetch(groups) == [NOTHING]


def test_a_request_that_is_refused_as_a_whole_is_refused_for_each_group(groups):
    error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    answer = offset_fetch.HANDLER.refuse(fetch_request(groups, groups=["a", "b"]), error)
    assert {one.group_id: one.error_code for one in answer.groups} == {
        "a": error.code,
        "b": error.code,
    }
