"""SyncGroup in a classic group: which members get the plan, and which do not (T41, T47)."""

from __future__ import annotations

import pytest

from tests.support.classic_desk import (
    REBALANCE_MS,
    SESSION_MS,
    Client,
    Desk,
    joined,
    refused,
)
from tidemill.core.errors import ErrorCode
from tidemill.core.limits import APPEND_RETRY_MS, GROUP_RECORD_BYTES_MAX
from tidemill.wire.primitives import Writer


def test_T41_plan_is_handed_out_as_the_leader_made_it():
    desk, (ana, ben, cem) = joined("ana", "ben", "cem")
    early = desk.sync(ben)
    plan = {ana.member_id: b"x", ben.member_id: b"y"}
    assert early.waits
    assert desk.sync(ana, plan).response.assignment == b"x"
    assert early.response.assignment == b"y"
    assert desk.sync(cem).response.assignment == b""


def test_T41_plan_of_a_member_that_does_not_lead_is_ignored():
    desk, (ana, ben) = joined("ana", "ben")
    desk.sync(ben, {ben.member_id: b"all"})
    desk.sync(ana, {})
    assert ben.assignment == b""


def test_T41_second_sync_of_a_waiting_member_takes_the_place_of_the_first():
    desk, (_, ben) = joined("ana", "ben")
    first = desk.sync(ben)
    assert desk.sync(ben).waits
    assert first.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_T41_sync_in_a_joining_phase_is_refused():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.join(Client("ben"))
    with refused(ErrorCode.REBALANCE_IN_PROGRESS):
        desk.sync(ana)


def test_T41_sync_of_an_unknown_member_is_refused():
    desk = Desk()
    eve = Client("eve", member_id="eve-1", generation=1)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        desk.sync(eve)
    desk.stable("ana")
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        desk.sync(eve)


@pytest.mark.parametrize("wrong", [-1, 0, 2])
def test_T41_sync_of_another_generation_is_refused(wrong):
    desk, (ana,) = joined("ana")
    ana.generation = wrong
    with refused(ErrorCode.ILLEGAL_GENERATION):
        desk.sync(ana)


@pytest.mark.parametrize("wrong", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}])
def test_T41_sync_that_names_another_protocol_is_refused(wrong):
    desk, (ana,) = joined("ana")
    with refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
        desk.sync(ana, None, **wrong)


def test_T41_sync_that_names_the_right_protocol_is_answered_with_it():
    desk, (ana,) = joined("ana")
    response = desk.sync(ana, None, protocol_type="consumer", protocol_name="range").response
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", range(6))
def test_answers_to_sync_can_be_written_in_every_version(version):
    desk, (ana,) = joined("ana")
    desk.sync(ana, {ana.member_id: b"x"}).response.write(Writer(), version)


def test_S41_plan_that_does_not_fit_one_record_is_refused_and_changes_nothing():
    desk, (ana, ben) = joined("ana", "ben")
    waiting = desk.sync(ben)
    with refused(ErrorCode.MESSAGE_TOO_LARGE):
        desk.sync(ana, {ana.member_id: bytes(GROUP_RECORD_BYTES_MAX)})
    assert waiting.waits
    desk.sync(ana, {ben.member_id: b"y"})
    assert waiting.response.assignment == b"y"


def test_plan_that_was_not_written_reaches_no_member():
    desk, (ana,) = joined("ana")
    desk.append_fails = True
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        desk.sync(ana, {ana.member_id: b"x"})
    assert desk.group.state_name == "CompletingRebalance"
    desk.append_fails = False
    assert desk.sync(ana, {ana.member_id: b"z"}).response.assignment == b"z"


def test_leader_whose_plan_was_not_written_is_still_dropped_if_it_gives_up():
    desk, (ana,) = joined("ana")
    desk.append_fails = True
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        desk.sync(ana)
    desk.append_fails = False
    for _ in range(REBALANCE_MS // 1_000):
        desk.heartbeat_code(ana)
        desk.advance(1_000)
    assert desk.group.is_empty


def test_T47_end_of_an_unfinished_sync_phase_is_retried_until_the_log_accepts_it():
    desk, (ana,) = joined("ana")
    desk.append_fails = True
    for _ in range(REBALANCE_MS // 1_000):
        desk.heartbeat(ana)
        desk.advance(1_000)
    desk.append_fails = False
    desk.heartbeat(ana)
    desk.advance(APPEND_RETRY_MS)
    assert desk.group.is_empty


def test_T47_member_that_does_not_sync_in_time_is_dropped_and_the_others_join_again():
    desk = Desk()
    ana, ben = desk.stable("ana", "ben", session_ms=REBALANCE_MS * 2)
    desk.join(ana)
    desk.join(ben)
    desk.sync(ana)
    desk.advance(REBALANCE_MS)
    assert desk.heartbeat_code(ana) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.heartbeat_code(ben) is ErrorCode.UNKNOWN_MEMBER_ID


def test_T47_member_that_waits_for_the_plan_does_not_lose_its_session():
    desk, (ana, ben) = joined("ana", "ben")
    waiting = desk.sync(ben)
    for _ in range(5):
        desk.advance(SESSION_MS - 1)
        desk.heartbeat(ana)
    assert waiting.waits


def test_T47_member_whose_wait_ends_with_the_leader_has_a_new_session():
    desk, (_, ben) = joined("ana", "ben")
    waiting = desk.sync(ben)
    desk.advance(SESSION_MS)
    assert waiting.code is ErrorCode.REBALANCE_IN_PROGRESS
    desk.advance(SESSION_MS - 1)
    assert desk.heartbeat_code(ben) is ErrorCode.REBALANCE_IN_PROGRESS
