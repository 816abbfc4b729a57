"""Heartbeat and LeaveGroup in a classic group: how members stay and how they leave (T41 to T47)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.classic_desk import (
    SESSION_MS,
    WALL_MS,
    Client,
    Desk,
    joined,
    refused,
)
from tidemill.coordinators.group.classic.members import ClassicMember, ClassicMembers
from tidemill.core.errors import ErrorCode
from tidemill.core.limits import APPEND_RETRY_MS
from tidemill.wire.primitives import Writer

# --- Heartbeat -----------------------------------------------------------------------------------


def test_T41_heartbeat_in_a_joining_phase_reports_the_rebalance():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.join(Client("ben"))
    assert desk.heartbeat_code(ana) is ErrorCode.REBALANCE_IN_PROGRESS


def test_T41_heartbeat_before_the_plan_is_accepted():
    desk, (ana,) = joined("ana")
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_T41_heartbeat_of_another_generation_is_refused_and_does_not_extend_the_session():
    desk = Desk()
    (ana,) = desk.stable("ana")
    ana.generation = 0
    desk.advance(SESSION_MS - 1)
    assert desk.heartbeat_code(ana) is ErrorCode.ILLEGAL_GENERATION
    desk.advance(1)
    assert desk.group.is_empty


def test_T41_heartbeat_of_an_unknown_member_is_refused():
    desk = Desk()
    eve = Client("eve", member_id="eve-1")
    assert desk.heartbeat_code(eve) is ErrorCode.UNKNOWN_MEMBER_ID
    eve.instance_id = "e"
    assert desk.heartbeat_code(eve) is ErrorCode.UNKNOWN_MEMBER_ID


def test_T47_heartbeats_keep_a_member_and_silence_ends_its_session():
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
    monkeypatch,
):
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


def test_T47_rest_of_the_group_joins_again_as_soon_as_one_leaves():
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    assert desk.leave(ben, version=2).code is ErrorCode.NONE
    assert desk.heartbeat_code(ana) is ErrorCode.REBALANCE_IN_PROGRESS


def test_T47_joining_phase_ends_when_the_last_missing_member_leaves():
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    answer = desk.join(ana)
    desk.leave(ben)
    assert answer.code is ErrorCode.NONE
    assert ana.listed == [ana.member_id]


def test_T47_unknown_member_cannot_leave():
    desk = Desk()
    eve = Client("eve", member_id="eve-1")
    assert desk.leave(eve, version=2).code is ErrorCode.UNKNOWN_MEMBER_ID
    (ana,) = desk.stable("ana")
    assert desk.leave(eve, version=0).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.heartbeat(ana).code is ErrorCode.NONE


@pytest.mark.parametrize("version", [3, 4, 5])
def test_T42_several_leave_at_once_and_each_has_an_answer(version):
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


def test_T47_request_of_a_member_that_is_removed_while_it_waits_is_answered():
    desk = Desk()
    desk.stable("ana")
    ben = Client("ben")
    waiting = desk.join(ben)
    desk.leave(ben)
    assert waiting.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_I28_group_that_became_empty_is_a_new_generation_with_its_time_in_the_log():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.advance(5)
    desk.leave(ana)
    assert (desk.group.state_name, desk.group.generation) == ("Empty", 2)
    assert desk.group.empty_since_ms == WALL_MS + 5
    desk.reload()
    assert (desk.group.state_name, desk.group.generation) == ("Empty", 2)
    assert desk.group.empty_since_ms == WALL_MS + 5


def test_last_member_stays_if_its_departure_could_not_be_written():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.append_fails = True
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        desk.leave(ana)
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_T47_end_of_the_last_session_is_retried_until_the_log_accepts_it():
    desk = Desk()
    desk.stable("ana")
    desk.append_fails = True
    desk.advance(SESSION_MS)
    assert not desk.group.is_empty
    desk.append_fails = False
    desk.advance(APPEND_RETRY_MS)
    assert desk.group.is_empty


def test_T47_joining_phase_without_joins_empties_the_group_once_the_log_accepts_it():
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
