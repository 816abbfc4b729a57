from __future__ import annotations

import pytest

from tests.unit.server.group_requests import (
    FETCH_VERSIONS,
    FIRST_WITH_GROUPS,
    OFFSETS_TOPIC,
    commit,
    fetch,
    fetch_request,
)
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


@pytest.mark.parametrize(
    ("code", "member_id", "is_stable", "comes_again"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None, True, True),
        (ErrorCode.NOT_COORDINATOR, "m", True, True),
        (ErrorCode.NOT_COORDINATOR, None, True, False),  # no heartbeat finds the next one
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "m", False, False),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "m", True, False),
    ],
)
def test_a_coordinator_that_is_not_ready_has_only_offsets_that_are_not_stable_yet(
    groups, code, member_id, is_stable, comes_again
):
    request = fetch_request(groups, 9, names=("t",), require_stable=is_stable)
    request.groups[0].member_id = member_id
    answer = offset_fetch.HANDLER.refuse(request, KafkaError(code)).groups[0]
    codes = [one.error_code for topic in answer.topics for one in topic.partitions]
    assert answer.error_code == (ErrorCode.NONE if comes_again else code)
    assert codes == ([ErrorCode.UNSTABLE_OFFSET_COMMIT] if comes_again else [])


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
