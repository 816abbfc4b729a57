from __future__ import annotations

import pytest

from tests.support.partitions import content
from tests.unit.server.group_requests import (
    COMMIT_VERSIONS,
    OFFSETS_TOPIC,
    commit,
    commit_request,
    fetch,
    fetch_request,
)
from tests.unit.server.one_broker import NOW_MS, value_of
from tidemill.coordinators.group.base.records import decode_value, try_decode_key
from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.wire.records import iter_records


@pytest.fixture
def groups(broker):
    broker.make_topic(OFFSETS_TOPIC, 4)
    broker.make_topic("t")
    return broker


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
def test_T46_an_offset_is_committed_in_every_version(groups, version):
    assert commit(groups, 5, version) == [ErrorCode.NONE]
    assert fetch(groups) == [(5, "m", ErrorCode.NONE)]


def test_a_commit_is_one_record_in_kafkas_format(broker):
    broker.make_topic(OFFSETS_TOPIC, 1)
    topic = broker.make_topic("t")
    commit(broker, 5)
    (record,) = iter_records(content(broker.partition(OFFSETS_TOPIC)))
    key = try_decode_key(record.key)
    value = decode_value(key, record.value)
    assert (key.group, key.topic, key.partition) == ("g", "t", 0)
    assert (value.offset, value.metadata, value.commit_timestamp) == (5, "m", NOW_MS)
    assert value.topic_id == topic.topic_id


@pytest.mark.parametrize(
    ("version", "code"),
    [(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (10, ErrorCode.UNKNOWN_TOPIC_ID)],
)
def test_topics_that_do_not_exist_are_refused_beside_those_that_do(groups, version, code):
    assert commit(groups, 5, version, names=("nope", "t")) == [code, ErrorCode.NONE]


def test_T46_a_refused_group_is_an_error_for_each_partition(groups):
    codes = commit(groups, 5, 8, names=("t", "t"), generation_id_or_member_epoch=3, member_id="m")
    assert codes == [ErrorCode.ILLEGAL_GENERATION] * 2


def test_without_the_offsets_topic_there_is_no_coordinator(broker):
    broker.make_topic("t")
    assert commit(broker) == [ErrorCode.NOT_COORDINATOR]


def test_a_group_that_may_not_be_read_commits_nothing(groups):
    groups.permissions.deny(Operation.READ, "g")
    assert commit(groups) == [ErrorCode.GROUP_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("version", [9, 10])
def test_topics_that_may_not_be_read_are_refused_alone(groups, version):
    groups.make_topic("secret")
    groups.permissions.deny(Operation.READ, "secret")
    codes = commit(groups, 5, version, names=("secret", "t"))
    assert sorted(codes) == [ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert commit(groups, 5, version, names=("secret",)) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert fetch(groups, names=("secret", "t")) == [
        (-1, "", ErrorCode.NONE),
        (5, "m", ErrorCode.NONE),
    ]


@pytest.fixture
def slow(broker):
    """The other replica of the offsets topic has not fetched: nothing is committed."""
    broker.join_broker(2)
    broker.make_topic(OFFSETS_TOPIC, -1, assignments={0: [1, 2]})
    broker.make_topic("t", -1, assignments={0: [1]})
    return broker


def test_T46_the_answer_waits_until_the_offset_is_committed(slow):
    answer = slow.start_deferred(commit_request(slow, 5), 9)
    assert not answer.resolved


def test_I28_an_offset_that_is_not_committed_is_not_shown(slow):
    slow.start_deferred(commit_request(slow, 5), 9)
    answer = slow.start_deferred(fetch_request(slow), 9)
    assert not answer.resolved
    slow.groups.runtime.resign(0)
    slow.partition(OFFSETS_TOPIC).become_follower(slow.partition(OFFSETS_TOPIC).image)
    assert value_of(answer).groups[0].error_code == ErrorCode.NOT_COORDINATOR
