"""The joining phase of a classic group: what begins it, and how long it waits (T40, T41)."""

from __future__ import annotations

import pytest

from tests.support.classic_desk import (
    REBALANCE_MS,
    SESSION_MS,
    Client,
    Desk,
    config,
    refused,
)
from tidemill.core.errors import ErrorCode
from tidemill.core.limits import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
)


def test_T41_only_the_leader_gets_the_list_of_members():
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    assert (ana.leads, ben.leads) == (True, False)
    assert ana.listed == [ana.member_id, ben.member_id]
    assert ben.listed == []


def test_T41_follower_that_joins_unchanged_is_told_the_current_generation():
    desk = Desk()
    _, ben = desk.stable("ana", "ben")
    answer = desk.join(ben)
    assert answer.response.generation_id == 2
    assert answer.response.members == []
    assert desk.group.state_name == "Stable"


def test_T41_leader_that_joins_again_begins_a_round():
    desk = Desk()
    ana, _ = desk.stable("ana", "ben")
    assert desk.join(ana).waits
    assert desk.group.state_name == "PreparingRebalance"


@pytest.mark.parametrize(
    "change", [{"topics": ("t", "u")}, {"protocols": ("range", "sticky")}], ids=["topics", "offer"]
)
def test_T41_follower_that_changed_begins_a_round(change):
    desk = Desk()
    _, ben = desk.stable("ana", "ben")
    for name, value in change.items():
        setattr(ben, name, value)
    assert desk.join(ben).waits
    assert desk.group.state_name == "PreparingRebalance"


def test_T41_member_that_joins_unchanged_before_the_plan_is_told_the_same_again():
    desk = Desk()
    ana, ben = Client("ana"), Client("ben")
    desk.join(ana)
    desk.join(ben)
    desk.join(ana)
    again = desk.join(ana)
    assert again.response.generation_id == 2
    assert len(again.response.members) == 2
    assert desk.group.state_name == "CompletingRebalance"


def test_T41_member_that_changed_before_the_plan_begins_a_round_and_parked_members_are_told():
    desk = Desk()
    ana, ben = Client("ana"), Client("ben")
    desk.join(ana)
    desk.join(ben)
    desk.join(ana)
    waiting = desk.sync(ben)
    ana.topics = ("u",)
    desk.join(ana)
    assert waiting.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.group.state_name == "PreparingRebalance"


def test_T40_second_join_of_a_waiting_member_takes_the_place_of_the_first():
    desk = Desk()
    (ana,) = desk.stable("ana")
    ben = Client("ben")
    first = desk.join(ben)
    second = desk.join(ben)
    assert first.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.waits
    desk.join(ana)
    assert second.code is ErrorCode.NONE


def test_T40_round_waits_for_the_slowest_member_and_no_longer():
    desk = Desk()
    ana, ben = desk.stable("ana", "ben", session_ms=1_000_000)
    cem = Client("cem", rebalance_ms=REBALANCE_MS * 2)
    answer = desk.join(cem)
    desk.join(ana)
    desk.advance(REBALANCE_MS * 2 - 1)
    assert answer.waits
    desk.advance(1)
    assert answer.code is ErrorCode.NONE
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        desk.heartbeat(ben)


def test_T40_version_0_has_no_rebalance_timeout_and_means_the_session_timeout():
    desk = Desk()
    ana, _ = desk.stable("ana", "ben", rebalance_ms=-1, session_ms=20_000)
    answer = desk.join(ana)
    desk.advance(20_000)
    assert answer.code is ErrorCode.NONE


def test_T40_first_round_is_extended_by_newcomers_up_to_the_rebalance_timeout():
    desk = Desk(config(group_initial_rebalance_delay_ms=3_000))
    answer = desk.join(Client("ana", rebalance_ms=7_000))
    for second in range(7):
        assert answer.waits
        desk.join(Client(f"c{second}"))
        desk.advance(1_000)
    assert answer.code is ErrorCode.NONE


def test_T40_first_round_without_newcomers_takes_the_delay_only():
    desk = Desk(config(group_initial_rebalance_delay_ms=3_000))
    answer = desk.join(Client("ana"))
    desk.advance(2_999)
    assert answer.waits
    desk.advance(1)
    assert answer.code is ErrorCode.NONE


def test_T40_delay_longer_than_the_rebalance_timeout_is_not_extended():
    desk = Desk(config(group_initial_rebalance_delay_ms=3_000))
    answer = desk.join(Client("ana", rebalance_ms=1_000))
    desk.join(Client("ben", rebalance_ms=1_000))
    desk.advance(3_000)
    assert answer.code is ErrorCode.NONE


def test_T40_new_member_that_waits_too_long_for_its_first_answer_is_dropped():
    desk = Desk()
    long_ms = NEW_MEMBER_JOIN_TIMEOUT_MS * 2
    (ana,) = desk.stable("ana", session_ms=1_800_000, rebalance_ms=long_ms)
    answer = desk.join(Client("ben", rebalance_ms=long_ms))
    desk.join(Client("ben2", rebalance_ms=long_ms))
    desk.advance(NEW_MEMBER_JOIN_TIMEOUT_MS - 1)
    assert answer.waits
    desk.advance(1)
    assert answer.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.heartbeat_code(ana) is ErrorCode.REBALANCE_IN_PROGRESS


def test_T40_member_that_waits_in_a_joining_phase_keeps_its_place_without_heartbeats():
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    answer = desk.join(ana)
    for _ in range(5):
        desk.advance(SESSION_MS - 1)
        desk.heartbeat_code(ben)
    assert answer.waits
    desk.join(ben)
    assert answer.code is ErrorCode.NONE
