"""Static members of a classic group: a member that returns keeps its place (T42)."""

from __future__ import annotations

from tests.support.classic_desk import (
    Client,
    Desk,
    refused,
)
from tidemill.core.errors import ErrorCode
from tidemill.wire.primitives import Writer


def _static_pair() -> tuple[Desk, Client, Client]:
    desk = Desk()
    ana, ben = desk.stabilise(Client("ana", instance_id="a"), Client("ben", instance_id="b"))
    return desk, ana, ben


def test_T42_static_member_needs_no_id_to_join():
    desk, ana = Desk(), Client("ana", instance_id="a")
    desk.send_join(ana)
    assert ana.generation == 1


def test_T42_returning_static_member_gets_its_share_without_a_round():
    desk, ana, ben = _static_pair()
    ben.member_id = ""
    answer = desk.join(ben)
    assert answer.response.member_id == "ben-2"
    assert answer.response.leader == ana.member_id
    assert (answer.response.generation_id, answer.response.skip_assignment) == (2, False)
    assert desk.sync(ben).response.assignment == b"ben"
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_T42_new_id_of_a_static_member_is_in_the_log():
    desk, _, ben = _static_pair()
    ben.member_id = ""
    desk.join(ben)
    desk.reload()
    assert desk.heartbeat(ben).code is ErrorCode.NONE


def test_T42_static_member_whose_new_id_was_not_written_is_not_replaced():
    desk, _, ben = _static_pair()
    former = ben.member_id
    ben.member_id = ""
    desk.append_fails = True
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        desk.join(ben)
    ben.member_id = former
    assert desk.heartbeat(ben).code is ErrorCode.NONE


def test_T42_old_id_of_a_static_member_is_fenced_everywhere():
    desk, _, ben = _static_pair()
    old = Client("old", instance_id="b", member_id=ben.member_id, generation=2)
    ben.member_id = ""
    desk.join(ben)
    for request in (desk.send_join, desk.sync, desk.heartbeat, desk.commit):
        with refused(ErrorCode.FENCED_INSTANCE_ID):
            request(old)
    left = desk.leave(old).response.members[0].error_code
    assert left == ErrorCode.FENCED_INSTANCE_ID


def test_T42_returning_static_leader_of_version_9_is_told_to_skip_the_plan():
    desk, ana, ben = _static_pair()
    ana.member_id = ""
    answer = desk.join(ana)
    assert answer.response.skip_assignment
    assert answer.response.leader == answer.response.member_id == "ana-2"
    assert ana.listed == ["ana-2", ben.member_id]


def test_T42_returning_static_leader_before_version_9_is_not_told_that_it_leads():
    desk, ana, _ = _static_pair()
    former = ana.member_id
    ana.member_id = ""
    answer = desk.join(ana, version=8)
    assert answer.response.leader == former
    assert answer.response.members == []
    answer.response.write(Writer(), 8)


def test_T42_returning_static_member_with_other_protocols_begins_a_round():
    desk, _, ben = _static_pair()
    ben.member_id = ""
    ben.protocols = ("sticky", "range")
    assert desk.join(ben).waits


def test_T42_returning_static_member_with_other_topics_begins_a_round():
    desk, _, ben = _static_pair()
    ben.member_id = ""
    ben.topics = ("u",)
    assert desk.join(ben).waits


def test_T42_metadata_of_other_kinds_of_clients_is_not_compared():
    desk = Desk()
    (worker,) = desk.stable("w", instance_id="w", protocol_type="connect")
    worker.member_id = ""
    worker.topics = ("u",)
    desk.join(worker)
    assert (worker.member_id, worker.generation) == ("w-2", 1)


def test_T42_all_protocols_of_a_returning_static_member_are_remembered():
    desk = Desk()
    (ana,) = desk.stable("ana", instance_id="a", protocols=("range", "sticky"))
    ana.member_id = ""
    desk.join(ana)
    assert desk.join(Client("ben", protocols=("sticky",))).waits


def test_T42_static_member_that_returns_in_a_joining_phase_takes_its_own_place():
    desk, ana, ben = _static_pair()
    lost = desk.join(ana)
    ana.member_id = ""
    again = desk.join(ana)
    assert lost.code is ErrorCode.FENCED_INSTANCE_ID
    assert again.waits
    desk.join(ben)
    assert again.response.leader == ana.member_id == "ana-2"


def test_T42_static_member_that_returns_before_the_plan_begins_a_round():
    desk, ana, ben = _static_pair()
    desk.join(ana)
    desk.join(ben)
    lost = desk.sync(ben)
    ben.member_id = ""
    desk.join(ben)
    assert lost.code is ErrorCode.FENCED_INSTANCE_ID
    assert desk.group.state_name == "PreparingRebalance"


def test_T42_static_member_that_does_not_join_again_keeps_its_place_for_its_session():
    desk = Desk()
    ana = Client("ana", rebalance_ms=5_000)
    ben = Client("ben", instance_id="b", rebalance_ms=5_000, session_ms=30_000)
    desk.stabilise(ana, ben)
    desk.join(ana)
    desk.advance(5_000)
    assert ana.generation == 3
    assert ana.listed == [ana.member_id, ben.member_id]
    desk.sync(ana)
    for _ in range(4):
        desk.advance(4_999)
        assert desk.heartbeat(ana).code is ErrorCode.NONE
    desk.advance(5_004)
    assert desk.heartbeat_code(ana) is ErrorCode.REBALANCE_IN_PROGRESS


def test_T42_lead_of_a_static_member_that_stays_away_passes_on():
    desk = Desk()
    ana = Client("ana", instance_id="a", rebalance_ms=5_000, session_ms=30_000)
    ben = Client("ben", rebalance_ms=5_000)
    desk.stabilise(ana, ben)
    ben.topics = ("u",)
    desk.join(ben)
    desk.advance(5_000)
    assert ben.leads
    assert ben.listed == [ana.member_id, ben.member_id]


def test_T42_round_of_absent_static_members_continues_until_one_returns():
    desk = Desk()
    ana = Client("ana", instance_id="a", rebalance_ms=5_000, session_ms=60_000)
    ben = Client("ben", rebalance_ms=5_000)
    desk.stabilise(ana, ben)
    desk.leave(ben)
    desk.advance(11_000)
    assert desk.group.state_name == "PreparingRebalance"
    desk.join(ana)
    assert ana.generation == 3


def test_empty_instance_id_is_none():
    desk, ana = Desk(), Client("ana", instance_id="")
    assert desk.send_join(ana).code is ErrorCode.MEMBER_ID_REQUIRED
