"""SyncGroup, Heartbeat, LeaveGroup, commits and the log of a classic group (T41 to T47)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.coordinators.group.classic_desk import (
    REBALANCE_MS,
    SESSION_MS,
    WALL_MS,
    Client,
    Desk,
    config,
    subscription,
)
from tidemill.coordinators.group.classic_members import ClassicMember, ClassicMembers
from tidemill.coordinators.group.group import CommitIdentity, Group, GroupType
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import APPEND_RETRY_MS, GROUP_RECORD_BYTES_MAX
from tidemill.metadata.image import Delta, MetadataImage
from tidemill.wire.generated.group_metadata_record import GroupMetadataValue, MemberMetadata
from tidemill.wire.primitives import Writer


def _joined(*names: str) -> tuple[Desk, list[Client]]:
    """A group in which a generation has begun and no plan has been made; the first leads."""
    desk = Desk(config(group_initial_rebalance_delay_ms=1))
    clients = [Client(name) for name in names]
    for client in clients:
        desk.send_join(client, version=3)
    desk.advance(2)
    assert desk.group.state_name == "CompletingRebalance"
    return desk, clients


def _refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.raises(KafkaError, match=code.name)


def test_classic_group_is_a_group() -> None:
    group: Group = Desk().group
    assert (group.group_id, group.group_type) == ("g", GroupType.CLASSIC)


# --- SyncGroup -----------------------------------------------------------------------------------


def test_T41_plan_is_handed_out_as_the_leader_made_it() -> None:
    desk, (ana, ben, cem) = _joined("ana", "ben", "cem")
    early = desk.sync(ben)
    plan = {ana.member_id: b"x", ben.member_id: b"y"}
    assert early.waits
    assert desk.sync(ana, plan).response.assignment == b"x"
    assert early.response.assignment == b"y"
    assert desk.sync(cem).response.assignment == b""


def test_T41_plan_of_a_member_that_does_not_lead_is_ignored() -> None:
    desk, (ana, ben) = _joined("ana", "ben")
    desk.sync(ben, {ben.member_id: b"all"})
    desk.sync(ana, {})
    assert ben.assignment == b""


def test_T41_second_sync_of_a_waiting_member_takes_the_place_of_the_first() -> None:
    desk, (_, ben) = _joined("ana", "ben")
    first = desk.sync(ben)
    assert desk.sync(ben).waits
    assert first.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_T41_sync_in_a_joining_phase_is_refused() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.join(Client("ben"))
    with _refused(ErrorCode.REBALANCE_IN_PROGRESS):
        desk.sync(ana)


def test_T41_sync_of_an_unknown_member_is_refused() -> None:
    desk = Desk()
    eve = Client("eve", member_id="eve-1", generation=1)
    with _refused(ErrorCode.UNKNOWN_MEMBER_ID):
        desk.sync(eve)
    desk.stable("ana")
    with _refused(ErrorCode.UNKNOWN_MEMBER_ID):
        desk.sync(eve)


@pytest.mark.parametrize("wrong", [-1, 0, 2])
def test_T41_sync_of_another_generation_is_refused(wrong: int) -> None:
    desk, (ana,) = _joined("ana")
    ana.generation = wrong
    with _refused(ErrorCode.ILLEGAL_GENERATION):
        desk.sync(ana)


@pytest.mark.parametrize("wrong", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}])
def test_T41_sync_that_names_another_protocol_is_refused(wrong: dict[str, str]) -> None:
    desk, (ana,) = _joined("ana")
    with _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        desk.sync(ana, None, **wrong)


def test_T41_sync_that_names_the_right_protocol_is_answered_with_it() -> None:
    desk, (ana,) = _joined("ana")
    response = desk.sync(ana, None, protocol_type="consumer", protocol_name="range").response
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", range(6))
def test_answers_to_sync_can_be_written_in_every_version(version: int) -> None:
    desk, (ana,) = _joined("ana")
    desk.sync(ana, {ana.member_id: b"x"}).response.write(Writer(), version)


def test_S41_plan_that_does_not_fit_one_record_is_refused_and_changes_nothing() -> None:
    desk, (ana, ben) = _joined("ana", "ben")
    waiting = desk.sync(ben)
    with _refused(ErrorCode.MESSAGE_TOO_LARGE):
        desk.sync(ana, {ana.member_id: bytes(GROUP_RECORD_BYTES_MAX)})
    assert waiting.waits
    desk.sync(ana, {ben.member_id: b"y"})
    assert waiting.response.assignment == b"y"


def test_plan_that_was_not_written_is_nobodys() -> None:
    desk, (ana,) = _joined("ana")
    desk.append_fails = True
    with _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        desk.sync(ana, {ana.member_id: b"x"})
    assert desk.group.state_name == "CompletingRebalance"
    desk.append_fails = False
    assert desk.sync(ana, {ana.member_id: b"z"}).response.assignment == b"z"


def test_leader_whose_plan_was_not_written_is_still_dropped_if_it_gives_up() -> None:
    desk, (ana,) = _joined("ana")
    desk.append_fails = True
    with _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        desk.sync(ana)
    desk.append_fails = False
    for _ in range(REBALANCE_MS // 1_000):
        desk.heartbeat_code(ana)
        desk.advance(1_000)
    assert desk.group.is_empty


def test_T47_sync_phase_that_nobody_ended_is_tried_again_until_the_log_takes_it() -> None:
    desk, (ana,) = _joined("ana")
    desk.append_fails = True
    for _ in range(REBALANCE_MS // 1_000):
        desk.heartbeat(ana)
        desk.advance(1_000)
    desk.append_fails = False
    desk.heartbeat(ana)
    desk.advance(APPEND_RETRY_MS)
    assert desk.group.is_empty


def test_T47_member_that_does_not_sync_in_time_is_dropped_and_the_others_join_again() -> None:
    desk = Desk()
    ana, ben = desk.stable("ana", "ben", session_ms=REBALANCE_MS * 2)
    desk.join(ana)
    desk.join(ben)
    desk.sync(ana)
    desk.advance(REBALANCE_MS)
    assert desk.heartbeat_code(ana) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.heartbeat_code(ben) is ErrorCode.UNKNOWN_MEMBER_ID


def test_T47_member_that_waits_for_the_plan_does_not_lose_its_session() -> None:
    desk, (ana, ben) = _joined("ana", "ben")
    waiting = desk.sync(ben)
    for _ in range(5):
        desk.advance(SESSION_MS - 1)
        desk.heartbeat(ana)
    assert waiting.waits


def test_T47_member_whose_wait_ends_with_the_leader_has_a_fresh_session() -> None:
    desk, (_, ben) = _joined("ana", "ben")
    waiting = desk.sync(ben)
    desk.advance(SESSION_MS)
    assert waiting.code is ErrorCode.REBALANCE_IN_PROGRESS
    desk.advance(SESSION_MS - 1)
    assert desk.heartbeat_code(ben) is ErrorCode.REBALANCE_IN_PROGRESS


# --- Heartbeat -----------------------------------------------------------------------------------


def test_T41_heartbeat_in_a_joining_phase_says_that_there_is_one() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.join(Client("ben"))
    assert desk.heartbeat_code(ana) is ErrorCode.REBALANCE_IN_PROGRESS


def test_T41_heartbeat_before_the_plan_is_fine() -> None:
    desk, (ana,) = _joined("ana")
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_T41_heartbeat_of_another_generation_is_refused_and_is_no_sign_of_life() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    ana.generation = 0
    desk.advance(SESSION_MS - 1)
    assert desk.heartbeat_code(ana) is ErrorCode.ILLEGAL_GENERATION
    desk.advance(1)
    assert desk.group.is_empty


def test_T41_heartbeat_of_an_unknown_member_is_refused() -> None:
    desk = Desk()
    eve = Client("eve", member_id="eve-1")
    assert desk.heartbeat_code(eve) is ErrorCode.UNKNOWN_MEMBER_ID
    eve.instance_id = "e"
    assert desk.heartbeat_code(eve) is ErrorCode.UNKNOWN_MEMBER_ID


def test_T47_heartbeats_keep_a_member_and_silence_ends_its_session() -> None:
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    for _ in range(3):
        desk.advance(SESSION_MS - 1)
        desk.heartbeat(ana)
        desk.heartbeat(ben)
    desk.advance(SESSION_MS - 1)
    desk.heartbeat(ana)
    desk.advance(1)
    assert desk.heartbeat_code(ana) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.heartbeat_code(ben) is ErrorCode.UNKNOWN_MEMBER_ID


def test_S41_requests_of_one_member_do_not_walk_over_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walks = 0
    iterate = ClassicMembers.__iter__

    def counted(members: ClassicMembers) -> Iterator[ClassicMember]:
        nonlocal walks
        walks += 1
        return iterate(members)

    desk = Desk()
    clients = desk.stable(*(f"c{i}" for i in range(20)))
    desk.join(clients[0])
    monkeypatch.setattr(ClassicMembers, "__iter__", counted)
    for client in clients[1:-1]:
        desk.heartbeat_code(client)
        desk.commit(client)
        desk.join(client)
    assert walks == 0


# --- LeaveGroup ----------------------------------------------------------------------------------


def test_T47_rest_of_the_group_joins_again_as_soon_as_one_leaves() -> None:
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    assert desk.leave(ben, version=2).code is ErrorCode.NONE
    assert desk.heartbeat_code(ana) is ErrorCode.REBALANCE_IN_PROGRESS


def test_T47_leaving_of_the_last_that_is_missed_ends_the_joining_phase() -> None:
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    answer = desk.join(ana)
    desk.leave(ben)
    assert answer.code is ErrorCode.NONE
    assert ana.listed == [ana.member_id]


def test_T47_unknown_member_cannot_leave() -> None:
    desk = Desk()
    eve = Client("eve", member_id="eve-1")
    assert desk.leave(eve, version=2).code is ErrorCode.UNKNOWN_MEMBER_ID
    (ana,) = desk.stable("ana")
    assert desk.leave(eve, version=0).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.heartbeat(ana).code is ErrorCode.NONE


@pytest.mark.parametrize("version", [3, 4, 5])
def test_T42_several_leave_at_once_and_each_has_an_answer(version: int) -> None:
    desk = Desk()
    ana, ben, cem = desk.stabilise(Client("ana"), Client("ben"), Client("cem", instance_id="c"))
    who = [("", "c"), (ben.member_id, None), ("eve-1", None), ("", "e"), (ben.member_id, None)]
    answer = desk.leave_as(*who, version=version)
    assert answer.code is ErrorCode.NONE
    codes = [ErrorCode(member.error_code) for member in answer.response.members]
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, unknown, unknown, unknown]
    assert [(m.member_id, m.group_instance_id) for m in answer.response.members] == who
    assert desk.heartbeat_code(ana) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.heartbeat_code(cem) is ErrorCode.UNKNOWN_MEMBER_ID
    answer.response.write(Writer(), version)


def test_T47_request_of_a_member_that_is_removed_while_it_waits_is_answered() -> None:
    desk = Desk()
    desk.stable("ana")
    ben = Client("ben")
    waiting = desk.join(ben)
    desk.leave(ben)
    assert waiting.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_I28_group_that_became_empty_is_a_new_generation_and_the_log_says_when() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.advance(5)
    desk.leave(ana)
    assert (desk.group.state_name, desk.group.generation) == ("Empty", 2)
    assert desk.group.empty_since_ms == WALL_MS + 5
    desk.reload()
    assert (desk.group.state_name, desk.group.generation) == ("Empty", 2)
    assert desk.group.empty_since_ms == WALL_MS + 5


def test_last_member_whose_going_was_not_written_is_still_there() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.append_fails = True
    with _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        desk.leave(ana)
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_T47_last_session_that_ended_is_tried_again_until_the_log_takes_it() -> None:
    desk = Desk()
    desk.stable("ana")
    desk.append_fails = True
    desk.advance(SESSION_MS)
    assert not desk.group.is_empty
    desk.append_fails = False
    desk.advance(APPEND_RETRY_MS)
    assert desk.group.is_empty


def test_T47_joining_phase_that_nobody_joined_empties_the_group_once_the_log_takes_it() -> None:
    desk = Desk()
    ana, ben = desk.stable("ana", "ben", rebalance_ms=5_000)
    desk.leave(ana)
    desk.append_fails = True
    desk.advance(5_000)
    assert not desk.group.is_empty
    desk.append_fails = False
    desk.advance(APPEND_RETRY_MS)
    assert desk.group.is_empty
    assert desk.heartbeat_code(ben) is ErrorCode.UNKNOWN_MEMBER_ID


# --- offsets -------------------------------------------------------------------------------------


def test_T46_consumer_without_membership_may_commit_while_the_group_is_empty() -> None:
    desk = Desk()
    desk.group.check_commit(CommitIdentity("", -1), desk.now)
    desk.stable("ana")
    with _refused(ErrorCode.UNKNOWN_MEMBER_ID):
        desk.group.check_commit(CommitIdentity("", -1), desk.now)


def test_T46_commit_of_another_generation_is_refused() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.commit(ana)
    for wrong in (-1, 0, 2):
        with _refused(ErrorCode.ILLEGAL_GENERATION):
            desk.commit(ana, wrong)


def test_T46_commit_of_a_member_that_left_is_refused() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.leave(ana)
    with _refused(ErrorCode.UNKNOWN_MEMBER_ID):
        desk.commit(ana)


def test_T46_commit_in_a_joining_phase_is_still_good_and_before_the_plan_no_more() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.join(Client("ben"))
    desk.commit(ana)
    desk.join(ana)
    with _refused(ErrorCode.REBALANCE_IN_PROGRESS):
        desk.commit(ana)


def test_T46_commit_is_a_sign_of_life() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.advance(SESSION_MS - 1)
    desk.commit(ana)
    desk.advance(SESSION_MS - 1)
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_T45_anyone_may_read_offsets() -> None:
    desk = Desk()
    desk.stable("ana")
    desk.group.check_fetch(CommitIdentity("eve", 99))


def test_T43_topics_of_live_members_are_known() -> None:
    desk = Desk()
    ana, ben = desk.stabilise(Client("ana", topics=("a",)), Client("ben", topics=("b", "c")))
    wanted = [topic for topic in "abcd" if desk.group.subscribes_to(topic)]
    assert wanted == ["a", "b", "c"]
    desk.leave(ben)
    assert not desk.group.subscribes_to("b")
    desk.leave(ana)
    assert not desk.group.subscribes_to("a")


def test_T43_topics_are_known_after_a_reload() -> None:
    desk = Desk()
    desk.stable("ana", topics=("a",))
    desk.reload()
    assert desk.group.subscribes_to("a")
    assert not desk.group.subscribes_to("b")


def test_T43_any_topic_may_be_meant_if_one_subscription_cannot_be_read() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.reload()
    garbled = desk.decoded(desk.log[-1])
    garbled.members[0].subscription = b"\x00\x01garbled"
    desk.group.replay_metadata(garbled)
    assert desk.group.subscribes_to("anything")
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_T43_any_topic_may_be_meant_before_the_first_generation_and_by_other_clients() -> None:
    desk = Desk(config(group_initial_rebalance_delay_ms=3_000))
    desk.join(Client("ana"))
    assert desk.group.subscribes_to("anything")
    desk = Desk()
    desk.stable("w", protocol_type="connect")
    assert desk.group.subscribes_to("anything")


# --- DescribeGroups ------------------------------------------------------------------------------


def test_T44_stable_group_is_described_with_metadata_and_assignments() -> None:
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


def test_T44_group_between_two_plans_is_described_without_them() -> None:
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
        assert {member.member_metadata + member.member_assignment for member in group.members} == {
            b""
        }


def test_T44_group_that_nobody_joined_is_empty() -> None:
    group = Desk().group.describe()
    assert (group.group_state, group.protocol_type, group.members) == ("Empty", "", [])


# --- the log -------------------------------------------------------------------------------------


def test_members_of_a_reloaded_group_have_fresh_sessions() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.advance(SESSION_MS - 1)
    desk.reload()
    desk.advance(SESSION_MS - 1)
    assert desk.heartbeat(ana).code is ErrorCode.NONE
    desk.advance(SESSION_MS)
    assert desk.group.is_empty


def test_members_of_a_reloaded_group_keep_leader_and_assignments() -> None:
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    desk.reload()
    assert desk.sync(ben).response.assignment == b"ben"
    assert desk.join(ben).code is ErrorCode.NONE
    assert desk.join(ana).waits


def test_later_record_replaces_what_an_earlier_one_said() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana", topics=("a",))
    ana.topics = ("b",)
    desk.join(ana)
    desk.sync(ana, {ana.member_id: b"new"})
    desk.reload()
    assert desk.sync(ana).response.assignment == b"new"
    assert desk.group.subscribes_to("b")
    assert not desk.group.subscribes_to("a")


def test_tombstone_leaves_nothing_of_the_group() -> None:
    desk = Desk()
    desk.stable("ana")
    desk.send_join(Client("ben"))
    assert [record.value for record in desk.group.tombstones()] == [None]
    desk.group.replay_metadata(None)
    assert (desk.group.state_name, desk.group.generation) == ("Empty", 0)
    assert len(desk.surroundings.deadlines) == 0
    assert desk.group.empty_since_ms == -1


def test_group_that_the_log_never_heard_of_needs_no_tombstone() -> None:
    assert Desk().group.tombstones() == []


def test_record_of_version_0_means_the_session_timeout_for_rebalances() -> None:
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


def test_topics_that_change_are_the_members_business() -> None:
    desk = Desk()
    desk.stable("ana")
    image = MetadataImage()
    result = desk.group.metadata_changed(Delta(before=image, after=image), desk.now)
    assert (result.records, result.replies) == ([], [])


def test_rounds_are_counted_for_the_metrics_page() -> None:
    desk = Desk()
    ana, _ = desk.stable("ana", "ben")
    assert desk.surroundings.rebalances == 2
    desk.leave(ana)
    assert desk.surroundings.rebalances == 2


def test_everyone_who_waits_is_found_when_the_broker_resigns() -> None:
    desk, (_, ben) = _joined("ana", "ben")
    desk.sync(ben)
    desk.join(Client("cem"), version=3)
    desk.join(ben)
    assert len(desk.group.parked()) == 2
