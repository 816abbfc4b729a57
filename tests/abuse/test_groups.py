"""Groups under attack: clients that commit, join and flap do not disturb others (S38, S41)."""

from __future__ import annotations

import pytest

from tests.abuse.stranger import wait_until
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.delete_groups import DeleteGroupsRequest
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.generated.leave_group import LeaveGroupRequest, MemberIdentity
from tidemill.wire.generated.list_groups import ListGroupsRequest
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

COMMIT, FETCH_OFFSETS, JOIN, LEAVE = 9, 9, 7, 4
STORM = 300


def commit(group_id, offset=5, *, metadata="", **identity):
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=metadata
    )
    topic = OffsetCommitRequestTopic(name="canary", partitions=[partition])
    return OffsetCommitRequest(group_id=group_id, topics=[topic], **identity)


def commit_code(stranger, request):
    return ErrorCode(stranger.call(request, COMMIT).topics[0].partitions[0].error_code)


def committed(stranger, group_id):
    topics = [OffsetFetchRequestTopics(name="canary", partition_indexes=[0])]
    wanted = OffsetFetchRequestGroup(group_id=group_id, topics=topics)
    answer = stranger.call(OffsetFetchRequest(groups=[wanted]), FETCH_OFFSETS)
    return answer.groups[0].topics[0].partitions[0].committed_offset


def join(group_id, member_id="", *, metadata=b"", **fields):
    protocols = [JoinGroupRequestProtocol(name="range", metadata=metadata)]
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=protocols,
        **fields,
    )


def test_S41_commits_of_strangers_and_old_generations_change_nothing(victim):
    with victim.connect() as stranger:
        assert commit_code(stranger, commit("guarded", 5)) is ErrorCode.NONE
        for identity in (
            {"generation_id_or_member_epoch": 3, "member_id": "unknown"},
            {"generation_id_or_member_epoch": 2**31 - 1, "member_id": ""},
            {"generation_id_or_member_epoch": 0, "member_id": "x", "group_instance_id": "y"},
        ):
            code = commit_code(stranger, commit("guarded", 99, **identity))
            assert code is not ErrorCode.NONE, identity
        assert committed(stranger, "guarded") == 5


def test_S41_a_megabyte_of_metadata_is_refused_and_the_offset_stays(victim):
    with victim.connect() as stranger:
        assert commit_code(stranger, commit("wordy", 5)) is ErrorCode.NONE
        long = commit("wordy", 6, metadata="x" * 30_000)
        assert commit_code(stranger, long) is ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert committed(stranger, "wordy") == 5


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
def test_T46_a_commit_counts_though_its_sender_closes_at_once(victim, is_reset):
    names = [f"gone-{is_reset}-{number}" for number in range(20)]
    for name in names:
        with victim.connect() as stranger:
            if is_reset:
                stranger.reset_on_close()
            # Answers that are never read make the client's kernel refuse the connection.
            unread = [stranger.frame(ListGroupsRequest(), 4) for _ in range(3)]
            stranger.send(b"".join([*unread, stranger.frame(commit(name, 7), COMMIT)]))
    with victim.connect() as stranger:
        wait_until(
            lambda: {committed(stranger, name) for name in names} == {7}, "all commits count"
        )


@pytest.mark.parametrize("offset", [-1, -(2**63)])
def test_T46_negative_offsets_are_stored_as_given(victim, offset):
    with victim.connect() as stranger:
        assert commit_code(stranger, commit("below", offset)) is ErrorCode.NONE
        assert committed(stranger, "below") == offset


def test_S41_a_member_with_a_megabyte_of_subscription_is_refused(victim):
    with victim.connect() as stranger:
        answer = stranger.call(join("heavy", metadata=bytes(1 << 20)), JOIN)
        assert answer.error_code not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)


def test_S41_member_ids_that_are_never_used_do_not_pile_up(victim):
    with victim.connect() as stranger:
        codes = {stranger.call(join("storm"), JOIN).error_code for _ in range(STORM)}
    assert codes <= {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED}
    victim.check_canary()
    wait_until(lambda: "storm" not in _group_ids(victim), "the group is forgotten", 15.0)


def test_S41_a_flapping_member_does_not_disturb_others(victim):
    with victim.connect() as stranger:
        for _ in range(50):
            member_id = stranger.call(join("flapping"), JOIN).member_id
            left = LeaveGroupRequest(
                group_id="flapping", members=[MemberIdentity(member_id=member_id)]
            )
            stranger.call(left, LEAVE)
        victim.check_canary()
    assert "flapping" not in _group_ids(victim)


def test_S38_groups_of_one_commit_each_are_deleted_again(victim):
    names = [f"many-{number}" for number in range(STORM)]
    with victim.connect() as stranger:
        assert {commit_code(stranger, commit(name)) for name in names} == {ErrorCode.NONE}
        deleted = stranger.call(DeleteGroupsRequest(groups_names=names), 2)
        assert {one.error_code for one in deleted.results} == {ErrorCode.NONE}
    assert not set(names) & _group_ids(victim)


def _group_ids(victim):
    with victim.connect() as stranger:
        return {one.group_id for one in stranger.call(ListGroupsRequest(), 4).groups}
