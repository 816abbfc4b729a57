from __future__ import annotations

import pytest

from tests.unit.server.group_requests import fetch, with_two_groups
from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)


@pytest.fixture
def groups(broker):
    return with_two_groups(broker)


def delete_offsets(broker, *names, group_id="a"):
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition()])
        for name in names
    ]
    return broker.call(OffsetDeleteRequest(group_id=group_id, topics=topics), 0)


def codes_of(response):
    return {topic.name: ErrorCode(topic.partitions[0].error_code) for topic in response.topics}


def test_an_offset_is_deleted(groups):
    assert codes_of(delete_offsets(groups, "t")) == {"t": ErrorCode.NONE}
    assert fetch(groups, groups=("a",))[0][0] == -1
    assert fetch(groups, groups=("b",))[0][0] == 6


def test_offsets_of_an_unknown_group_are_refused(groups):
    answer = delete_offsets(groups, "t", group_id="unknown")
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_deleting_offsets_takes_the_right_to_delete_the_group_and_to_read_the_topic(groups):
    groups.make_topic("secret")
    groups.permissions.deny(Operation.READ, "secret")
    assert codes_of(delete_offsets(groups, "secret", "t")) == {
        "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "t": ErrorCode.NONE,
    }
    groups.permissions.deny(Operation.DELETE, "a")
    answer = delete_offsets(groups, "t")
    assert answer.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
