"""Groups and their offsets are deleted on request."""

from __future__ import annotations

import pytest

from tests.support.shard_desk import (
    CHECK_INTERVAL_MS,
    EMPTY_CLASSIC,
    GROUP,
    ShardDesk,
    commit_request,
    refusal,
    topic_image,
)
from tidemill.coordinators.group.base.records import encode_tombstone
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.group_metadata_record import GroupMetadataKey


@pytest.fixture
def desk():
    return ShardDesk()


def test_an_offset_is_deleted(desk):
    desk.commit(5)
    desk.commit(6, index=1)
    assert desk.delete_offsets("t", 0) == [ErrorCode.NONE]
    assert (desk.committed(index=0), desk.committed(index=1)) == (-1, 6)
    assert desk.reloaded().committed() == -1


def test_deleting_the_last_offset_keeps_a_group_that_nobody_joined(desk):
    desk.commit(5)
    assert desk.delete_offsets("t", 0) == [ErrorCode.NONE]
    assert desk.listed() == {GROUP: EMPTY_CLASSIC}
    assert desk.delete_offsets("t", 0) == [ErrorCode.NONE]
    assert desk.commit(6) is ErrorCode.NONE


def test_a_group_without_offsets_that_nobody_joined_goes_with_a_sweep_or_a_load(desk):
    desk.commit(5)
    desk.delete_offsets("t", 0)
    assert desk.reloaded().listed() == {}
    desk.pass_time(CHECK_INTERVAL_MS)
    assert desk.listed() == desk.reloaded().listed() == {}
    assert desk.shard.group_count == 0


def test_a_group_without_offsets_that_nobody_joined_can_be_deleted(desk):
    desk.commit(5)
    desk.delete_offsets("t", 0)
    assert desk.delete_group() is ErrorCode.NONE
    assert desk.listed() == desk.reloaded().listed() == {}


def test_an_offset_that_is_not_there_is_deleted_without_an_error(desk):
    desk.commit(5)
    assert desk.delete_offsets("t", 1, 0) == [ErrorCode.NONE] * 2


def test_offsets_of_no_group_cannot_be_deleted(desk):
    assert refusal(desk.delete_offsets) is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_a_topic_that_is_not_there_cannot_be_deleted(desk):
    desk.commit(5)
    assert desk.delete_offsets("nope") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("become", [ShardDesk.join, ShardDesk.heartbeat])
def test_T43_offsets_of_a_topic_that_members_read_cannot_be_deleted(become):
    desk = ShardDesk(topic_image("t", 1), topic_image("u", 2))
    desk.commit(5, topic="t")
    desk.commit(6, topic="u")
    become(desk)
    assert desk.delete_offsets("t") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert desk.delete_offsets("u") == [ErrorCode.NONE]
    assert (desk.committed("t"), desk.committed("u")) == (5, -1)


def test_offsets_of_members_that_are_no_consumers_cannot_be_deleted(desk):
    desk.commit(5)
    desk.join(protocol_type="connect")
    assert refusal(desk.delete_offsets) is ErrorCode.NON_EMPTY_GROUP


@pytest.mark.parametrize("become", [ShardDesk.join, ShardDesk.heartbeat])
def test_a_group_with_members_cannot_be_deleted(desk, become):
    become(desk)
    assert refusal(desk.delete_group) is ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_is_not_there_cannot_be_deleted(desk):
    assert refusal(desk.delete_group) is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deleted_group_is_gone_with_its_offsets(desk):
    desk.commit(5)
    assert desk.delete_group() is ErrorCode.NONE
    assert desk.listed() == desk.reloaded().listed() == {}
    assert desk.committed() == desk.reloaded().committed() == -1


def test_a_deleted_consumer_group_is_gone(desk):
    desk.heartbeat()
    desk.heartbeat(epoch=-1)
    assert desk.delete_group() is ErrorCode.NONE
    assert desk.listed() == desk.reloaded().listed() == {}


def test_a_group_of_very_many_offsets_is_deleted_in_steps():
    desk = ShardDesk(topic_image("t", 1, partitions=600))
    name = "g" * 1_000
    request = commit_request(5, group_id=name)
    for index in range(1, 600):
        request.topics[0].partitions += commit_request(5, index=index).topics[0].partitions
    desk.take(desk.shard.offsets.commit(request, version=9, now=desk.now))
    codes = [desk.delete_group(name) for _ in range(3)]
    retry = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert codes == [retry, retry, ErrorCode.NONE]
    assert desk.listed() == {}


def test_a_tombstone_of_a_group_that_has_offsets_leaves_the_offsets(desk):
    joined = desk.join()
    desk.commit(5, generation=joined.generation_id, member=joined.member_id)
    desk.shard.replay(*encode_tombstone(GroupMetadataKey(group=GROUP)))
    assert desk.listed() == {GROUP: EMPTY_CLASSIC}
    assert desk.committed() == 5
