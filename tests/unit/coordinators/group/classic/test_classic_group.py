"""Commits, description and the log of a classic group (T43 to T46)."""

from __future__ import annotations

from tests.support.classic_desk import (
    SESSION_MS,
    Client,
    Desk,
    config,
    joined,
    refused,
    subscription,
)
from tidemill.coordinators.group.base.group import CommitIdentity, Group, GroupType
from tidemill.core.errors import ErrorCode
from tidemill.metadata.image.metadata_image import Delta, MetadataImage
from tidemill.wire.generated.group_metadata_record import GroupMetadataValue, MemberMetadata


def test_classic_group_is_a_group():
    group: Group = Desk().group
    assert (group.group_id, group.group_type) == ("g", GroupType.CLASSIC)


# --- offsets -------------------------------------------------------------------------------------


def test_T46_consumer_without_membership_may_commit_while_the_group_is_empty():
    desk = Desk()
    desk.group.check_commit(CommitIdentity("", -1), [], desk.now)
    desk.stable("ana")
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        desk.group.check_commit(CommitIdentity("", -1), [], desk.now)


def test_T46_commit_of_another_generation_is_refused():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.commit(ana)
    for wrong in (-1, 0, 2):
        with refused(ErrorCode.ILLEGAL_GENERATION):
            desk.commit(ana, wrong)


def test_T46_commit_of_a_member_that_left_is_refused():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.leave(ana)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        desk.commit(ana)


def test_T46_commit_is_accepted_in_a_joining_phase_and_refused_before_the_plan():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.join(Client("ben"))
    desk.commit(ana)
    desk.join(ana)
    with refused(ErrorCode.REBALANCE_IN_PROGRESS):
        desk.commit(ana)


def test_T46_commit_is_a_sign_of_life():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.advance(SESSION_MS - 1)
    desk.commit(ana)
    desk.advance(SESSION_MS - 1)
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_T45_anyone_may_read_offsets():
    desk = Desk()
    desk.stable("ana")
    desk.group.check_fetch(CommitIdentity("eve", 99))


def test_T43_topics_of_live_members_are_known():
    desk = Desk()
    ana, ben = desk.stabilise(Client("ana", topics=("a",)), Client("ben", topics=("b", "c")))
    wanted = [topic for topic in "abcd" if desk.group.subscribes_to(topic)]
    assert wanted == ["a", "b", "c"]
    desk.leave(ben)
    assert not desk.group.subscribes_to("b")
    desk.leave(ana)
    assert not desk.group.subscribes_to("a")


def test_T43_topics_are_known_after_a_reload():
    desk = Desk()
    desk.stable("ana", topics=("a",))
    desk.reload()
    assert desk.group.subscribes_to("a")
    assert not desk.group.subscribes_to("b")


def test_T43_any_topic_may_be_meant_if_one_subscription_cannot_be_read():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.reload()
    garbled = desk.decoded(desk.log[-1])
    garbled.members[0].subscription = b"\x00\x01garbled"
    desk.group.replay_metadata(garbled)
    assert desk.group.subscribes_to("anything")
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_T43_any_topic_may_be_meant_before_the_first_generation_and_by_other_clients():
    desk = Desk(config(group_initial_rebalance_delay_ms=3_000))
    desk.join(Client("ana"))
    assert desk.group.subscribes_to("anything")
    desk = Desk()
    desk.stable("w", protocol_type="connect")
    assert desk.group.subscribes_to("anything")


# --- DescribeGroups ------------------------------------------------------------------------------


def test_T44_stable_group_is_described_with_metadata_and_assignments():
    desk = Desk()
    desk.stabilise(Client("ana", instance_id="a"))
    group = desk.group.describe()
    assert (group.group_id, group.group_state) == ("g", "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    (member,) = group.members
    assert (member.member_id, member.group_instance_id) == ("ana-1", "a")
    assert (member.client_id, member.client_host) == ("ana", "/127.0.0.1")
    assert member.member_metadata == subscription("t")
    assert member.member_assignment == b"ana"


def test_T44_group_between_two_plans_is_described_with_the_assignments_of_the_last():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.join(Client("ben"))
    states = [desk.group.describe()]
    desk.join(ana)
    states.append(desk.group.describe())
    assert [group.group_state for group in states] == ["PreparingRebalance", "CompletingRebalance"]
    for group in states:
        assert group.protocol_data == ""
        assert [member.member_id for member in group.members] == ["ana-1", "ben-1"]
        assert {member.member_metadata for member in group.members} == {b""}
        assert [member.member_assignment for member in group.members] == [b"ana", b""]


def test_T44_group_without_joins_is_empty():
    group = Desk().group.describe()
    assert (group.group_state, group.protocol_type, group.members) == ("Empty", "", [])


# --- the log -------------------------------------------------------------------------------------


def test_members_of_a_reloaded_group_have_fresh_sessions():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.advance(SESSION_MS - 1)
    desk.reload()
    desk.advance(SESSION_MS - 1)
    assert desk.heartbeat(ana).code is ErrorCode.NONE
    desk.advance(SESSION_MS)
    assert desk.group.is_empty


def test_members_of_a_reloaded_group_keep_leader_and_assignments():
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    desk.reload()
    assert desk.sync(ben).response.assignment == b"ben"
    assert desk.join(ben).code is ErrorCode.NONE
    assert desk.join(ana).waits


def test_later_record_replaces_what_an_earlier_one_said():
    desk = Desk()
    (ana,) = desk.stable("ana", topics=("a",))
    ana.topics = ("b",)
    desk.join(ana)
    desk.sync(ana, {ana.member_id: b"new"})
    desk.reload()
    assert desk.sync(ana).response.assignment == b"new"
    assert desk.group.subscribes_to("b")
    assert not desk.group.subscribes_to("a")


def test_tombstone_leaves_nothing_of_the_group():
    desk = Desk()
    desk.stable("ana")
    desk.send_join(Client("ben"))
    assert [record.value for record in desk.group.tombstones()] == [None]
    desk.group.replay_metadata(None)
    assert (desk.group.state_name, desk.group.generation) == ("Empty", 0)
    assert len(desk.context.deadlines) == 0
    assert desk.group.empty_since_ms == -1


def test_record_of_version_0_means_the_session_timeout_for_rebalances():
    desk = Desk()
    member = MemberMetadata(member_id="old-1", session_timeout=20_000, subscription=b"")
    desk.group.replay_metadata(
        GroupMetadataValue(
            protocol_type="consumer",
            generation=7,
            protocol="range",
            leader="gone",
            members=[member],
        )
    )
    desk.group.loaded(desk.now)
    old = Client("old", member_id="old-1", generation=7, session_ms=1_000_000)
    ben = Client("ben", rebalance_ms=5_000)
    answer = desk.join(ben)
    desk.heartbeat_code(old)
    desk.advance(19_999)
    assert answer.waits
    desk.advance(1)
    assert answer.response.generation_id == 8


def test_topics_that_change_are_the_members_business():
    desk = Desk()
    desk.stable("ana")
    image = MetadataImage()
    result = desk.group.metadata_changed(Delta(before=image, after=image), desk.now)
    assert (result.records, result.replies) == ([], [])


def test_rounds_are_counted_for_the_metrics_page():
    desk = Desk()
    ana, _ = desk.stable("ana", "ben")
    assert desk.context.rebalances == 2
    desk.leave(ana)
    assert desk.context.rebalances == 2


def test_all_parked_requests_are_found_when_the_broker_resigns():
    desk, (_, ben) = joined("ana", "ben")
    desk.sync(ben)
    desk.join(Client("cem"), version=3)
    desk.join(ben)
    assert len(desk.group.parked()) == 2
