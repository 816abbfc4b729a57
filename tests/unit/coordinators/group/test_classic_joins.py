"""JoinGroup in a classic group: who may come in, and who has to wait (T40 to T43)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.coordinators.group.classic_desk import (
    REBALANCE_MS,
    SESSION_MS,
    Client,
    Desk,
    config,
    subscription,
)
from tidemill.coordinators.group.group import DeadlineKey, DeadlineKind
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    CLASSIC_PROTOCOLS_MAX,
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    PENDING_MEMBER_IDS_MAX,
    SUBSCRIPTION_BYTES_MAX,
)
from tidemill.wire.generated.join_group import JoinGroupRequestProtocol, JoinGroupResponse
from tidemill.wire.primitives import Reader, Writer


def _refused(code: ErrorCode, desk: Desk, client: Client, **changed: Any) -> None:
    with pytest.raises(KafkaError) as refusal:
        desk.send_join(client, **changed)
    assert refusal.value.code is code


def _protocols(count: int, metadata: bytes) -> list[JoinGroupRequestProtocol]:
    return [JoinGroupRequestProtocol(name=f"p{i}", metadata=metadata) for i in range(count)]


# --- ids -----------------------------------------------------------------------------------------


def test_T40_unknown_client_of_version_4_is_told_an_id_to_come_back_with() -> None:
    desk, ana = Desk(), Client("ana")
    answer = desk.send_join(ana, version=4)
    assert answer.code is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.response.member_id == "ana-1"
    assert answer.response.generation_id == -1
    assert desk.group.is_empty
    desk.send_join(ana, version=4)
    assert ana.generation == 1


def test_T40_unknown_client_of_version_3_is_a_member_at_once() -> None:
    desk, ana = Desk(), Client("ana")
    desk.send_join(ana, version=3)
    assert (ana.member_id, ana.generation) == ("ana-1", 1)


def test_T40_id_that_nobody_came_back_with_expires_with_the_session_timeout() -> None:
    desk, ana = Desk(), Client("ana")
    desk.send_join(ana)
    desk.advance(SESSION_MS)
    _refused(ErrorCode.UNKNOWN_MEMBER_ID, desk, ana)


def test_T40_joining_phase_waits_for_a_client_that_was_told_an_id() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    ben = Client("ben")
    desk.send_join(ben)
    assert desk.join(ana).waits
    desk.send_join(ben)
    assert ana.generation == ben.generation == 2


def test_T40_joining_phase_goes_on_when_the_id_expires() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.send_join(Client("ben"))
    answer = desk.join(ana)
    desk.advance(SESSION_MS)
    assert answer.response.generation_id == 2


def test_T40_joining_phase_goes_on_when_the_id_is_given_back() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    ben = Client("ben")
    desk.send_join(ben)
    answer = desk.join(ana)
    assert desk.leave(ben).response.members[0].error_code == ErrorCode.NONE
    assert answer.response.generation_id == 2


def test_S38_ids_given_out_are_bounded_and_the_oldest_is_taken_back() -> None:
    desk = Desk()
    clients = [Client(f"c{i}") for i in range(PENDING_MEMBER_IDS_MAX + 1)]
    for client in clients:
        desk.send_join(client)
    assert len(desk.surroundings.deadlines) == PENDING_MEMBER_IDS_MAX
    _refused(ErrorCode.UNKNOWN_MEMBER_ID, desk, clients[0])
    assert desk.send_join(clients[1]).waits


def test_T40_unknown_member_id_is_refused_in_an_empty_group_and_in_one_with_members() -> None:
    desk, eve = Desk(), Client("eve", member_id="made-up")
    _refused(ErrorCode.UNKNOWN_MEMBER_ID, desk, eve)
    desk.stable("ana")
    _refused(ErrorCode.UNKNOWN_MEMBER_ID, desk, eve)


def test_id_that_was_given_out_cannot_be_used_by_a_static_member() -> None:
    desk, ana = Desk(), Client("ana")
    desk.send_join(ana)
    ana.instance_id = "a"
    _refused(ErrorCode.UNKNOWN_MEMBER_ID, desk, ana)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001, -1])
def test_T40_session_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    _refused(ErrorCode.INVALID_SESSION_TIMEOUT, Desk(), Client("ana", session_ms=timeout_ms))


@pytest.mark.parametrize("timeout_ms", [6_000, 1_800_000])
def test_T40_session_timeout_at_the_bounds_is_accepted(timeout_ms: int) -> None:
    desk, ana = Desk(), Client("ana", session_ms=timeout_ms)
    desk.join(ana)
    assert ana.generation == 1


@pytest.mark.parametrize(
    ("protocol_type", "protocols"), [("", ("range",)), ("consumer", ()), ("", ())]
)
def test_T41_first_member_has_to_name_a_type_and_a_protocol(
    protocol_type: str, protocols: tuple[str, ...]
) -> None:
    client = Client("ana", protocol_type=protocol_type, protocols=protocols)
    _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, Desk(), client)


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", ("range",)), ("consumer", ("sticky",)), ("consumer", ())],
)
def test_T41_member_that_does_not_suit_the_others_is_refused(
    protocol_type: str, protocols: tuple[str, ...]
) -> None:
    desk = Desk()
    desk.stable("ana")
    client = Client("eve", protocol_type=protocol_type, protocols=protocols)
    _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, desk, client)


def test_group_that_became_empty_may_take_members_of_another_type() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.leave(ana)
    assert desk.group.protocol_type == "consumer"
    desk.stabilise(Client("w", protocol_type="connect", protocols=("default",)))
    assert desk.group.protocol_type == "connect"


def test_T40_member_beyond_the_maximum_is_refused() -> None:
    desk = Desk(config(group_max_size=2))
    desk.stable("ana", "ben")
    _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, desk, Client("eve"))
    assert desk.group.state_name == "Stable"


def test_T40_maximum_holds_in_a_joining_phase_too() -> None:
    desk = Desk(config(group_max_size=2, group_initial_rebalance_delay_ms=3_000))
    desk.join(Client("ana"))
    desk.join(Client("ben"))
    _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, desk, Client("eve"))


def test_T42_static_member_may_come_back_to_a_full_group() -> None:
    desk = Desk(config(group_max_size=1))
    (ana,) = desk.stable("ana", instance_id="a")
    ana.member_id = ""
    desk.join(ana)
    assert ana.member_id == "ana-2"


def test_maximum_that_was_lowered_drops_whoever_joins_last() -> None:
    desk = Desk()
    ana, ben, cem = desk.stable("ana", "ben", "cem")
    desk.config = config(group_max_size=2)
    desk.reload()
    first = desk.join(ana)
    second = desk.join(ben)
    last = desk.join(cem)
    assert last.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert last.response.member_id == cem.member_id
    assert (first.code, second.code) == (ErrorCode.NONE, ErrorCode.NONE)


def test_S41_member_with_too_many_protocols_is_refused() -> None:
    desk, ana = Desk(), Client("ana")
    protocols = _protocols(CLASSIC_PROTOCOLS_MAX + 1, b"")
    _refused(ErrorCode.INVALID_REQUEST, desk, ana, protocols=protocols)
    desk.join(ana, protocols=_protocols(CLASSIC_PROTOCOLS_MAX, b""))
    assert ana.generation == 1


def test_S41_megabyte_of_metadata_is_refused_and_nobody_else_is_hurt() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    eve = Client("eve")
    half = bytes(SUBSCRIPTION_BYTES_MAX // 2 + 1)
    _refused(ErrorCode.INVALID_REQUEST, desk, eve, protocols=_protocols(2, half))
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_S41_members_whose_metadata_would_not_fit_one_record_are_refused() -> None:
    desk = Desk()
    big = [JoinGroupRequestProtocol(name="range", metadata=bytes(SUBSCRIPTION_BYTES_MAX))]
    for name in ("a", "b", "c"):
        desk.send_join(Client(name), version=3, protocols=big)
    _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, desk, Client("eve"), version=3, protocols=big)


# --- rounds --------------------------------------------------------------------------------------


def test_T41_only_the_leader_is_told_who_is_there() -> None:
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    assert (ana.leads, ben.leads) == (True, False)
    assert ana.listed == [ana.member_id, ben.member_id]
    assert ben.listed == []


def test_T41_follower_that_joins_unchanged_is_told_the_current_generation() -> None:
    desk = Desk()
    _, ben = desk.stable("ana", "ben")
    answer = desk.join(ben)
    assert answer.response.generation_id == 2
    assert answer.response.members == []
    assert desk.group.state_name == "Stable"


def test_T41_leader_that_joins_again_begins_a_round() -> None:
    desk = Desk()
    ana, _ = desk.stable("ana", "ben")
    assert desk.join(ana).waits
    assert desk.group.state_name == "PreparingRebalance"


@pytest.mark.parametrize(
    "change", [{"topics": ("t", "u")}, {"protocols": ("range", "sticky")}], ids=["topics", "offer"]
)
def test_T41_follower_that_changed_begins_a_round(change: dict[str, Any]) -> None:
    desk = Desk()
    _, ben = desk.stable("ana", "ben")
    for name, value in change.items():
        setattr(ben, name, value)
    assert desk.join(ben).waits
    assert desk.group.state_name == "PreparingRebalance"


def test_T41_member_that_joins_unchanged_before_the_plan_is_told_the_same_again() -> None:
    desk = Desk()
    ana, ben = Client("ana"), Client("ben")
    desk.join(ana)
    desk.join(ben)
    desk.join(ana)
    again = desk.join(ana)
    assert again.response.generation_id == 2
    assert len(again.response.members) == 2
    assert desk.group.state_name == "CompletingRebalance"


def test_T41_member_that_changed_before_the_plan_begins_a_round_and_waiting_ones_hear_of_it() -> (
    None
):
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


def test_T40_second_join_of_a_waiting_member_takes_the_place_of_the_first() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana")
    ben = Client("ben")
    first = desk.join(ben)
    second = desk.join(ben)
    assert first.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.waits
    desk.join(ana)
    assert second.code is ErrorCode.NONE


def test_T40_round_waits_for_the_slowest_member_and_no_longer() -> None:
    desk = Desk()
    ana, ben = desk.stable("ana", "ben", session_ms=1_000_000)
    cem = Client("cem", rebalance_ms=REBALANCE_MS * 2)
    answer = desk.join(cem)
    desk.join(ana)
    desk.advance(REBALANCE_MS * 2 - 1)
    assert answer.waits
    desk.advance(1)
    assert answer.code is ErrorCode.NONE
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        desk.heartbeat(ben)


def test_T40_version_0_has_no_rebalance_timeout_and_means_the_session_timeout() -> None:
    desk = Desk()
    ana, _ = desk.stable("ana", "ben", rebalance_ms=-1, session_ms=20_000)
    answer = desk.join(ana)
    desk.advance(20_000)
    assert answer.code is ErrorCode.NONE


def test_T40_first_round_is_extended_by_newcomers_up_to_the_rebalance_timeout() -> None:
    desk = Desk(config(group_initial_rebalance_delay_ms=3_000))
    answer = desk.join(Client("ana", rebalance_ms=7_000))
    for second in range(7):
        assert answer.waits
        desk.join(Client(f"c{second}"))
        desk.advance(1_000)
    assert answer.code is ErrorCode.NONE


def test_T40_first_round_without_newcomers_takes_the_delay_only() -> None:
    desk = Desk(config(group_initial_rebalance_delay_ms=3_000))
    answer = desk.join(Client("ana"))
    desk.advance(2_999)
    assert answer.waits
    desk.advance(1)
    assert answer.code is ErrorCode.NONE


def test_T40_delay_longer_than_the_rebalance_timeout_is_not_extended() -> None:
    desk = Desk(config(group_initial_rebalance_delay_ms=3_000))
    answer = desk.join(Client("ana", rebalance_ms=1_000))
    desk.join(Client("ben", rebalance_ms=1_000))
    desk.advance(3_000)
    assert answer.code is ErrorCode.NONE


def test_T40_new_member_that_waits_too_long_for_its_first_answer_is_dropped() -> None:
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


def test_T40_member_that_waits_in_a_joining_phase_keeps_its_place_without_heartbeats() -> None:
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    answer = desk.join(ana)
    for _ in range(5):
        desk.advance(SESSION_MS - 1)
        desk.heartbeat_code(ben)
    assert answer.waits
    desk.join(ben)
    assert answer.code is ErrorCode.NONE


# --- static members ------------------------------------------------------------------------------


def _static_pair() -> tuple[Desk, Client, Client]:
    desk = Desk()
    ana, ben = desk.stabilise(Client("ana", instance_id="a"), Client("ben", instance_id="b"))
    return desk, ana, ben


def test_T42_static_member_needs_no_id_to_join() -> None:
    desk, ana = Desk(), Client("ana", instance_id="a")
    desk.send_join(ana)
    assert ana.generation == 1


def test_T42_returning_static_member_gets_its_share_without_a_round() -> None:
    desk, ana, ben = _static_pair()
    ben.member_id = ""
    answer = desk.join(ben)
    assert answer.response.member_id == "ben-2"
    assert answer.response.leader == ana.member_id
    assert (answer.response.generation_id, answer.response.skip_assignment) == (2, False)
    assert desk.sync(ben).response.assignment == b"ben"
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_T42_new_id_of_a_static_member_is_in_the_log() -> None:
    desk, _, ben = _static_pair()
    ben.member_id = ""
    desk.join(ben)
    desk.reload()
    assert desk.heartbeat(ben).code is ErrorCode.NONE


def test_T42_static_member_whose_new_id_was_not_written_is_not_replaced() -> None:
    desk, _, ben = _static_pair()
    former = ben.member_id
    ben.member_id = ""
    desk.append_fails = True
    with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
        desk.join(ben)
    ben.member_id = former
    assert desk.heartbeat(ben).code is ErrorCode.NONE


def test_T42_old_id_of_a_static_member_is_fenced_everywhere() -> None:
    desk, _, ben = _static_pair()
    old = Client("old", instance_id="b", member_id=ben.member_id, generation=2)
    ben.member_id = ""
    desk.join(ben)
    _refused(ErrorCode.FENCED_INSTANCE_ID, desk, old)
    for request in (desk.sync, desk.heartbeat, desk.commit):
        with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
            request(old)
    left = desk.leave(old).response.members[0].error_code
    assert left == ErrorCode.FENCED_INSTANCE_ID


def test_T42_returning_static_leader_of_version_9_is_told_to_skip_the_plan() -> None:
    desk, ana, ben = _static_pair()
    ana.member_id = ""
    answer = desk.join(ana)
    assert answer.response.skip_assignment
    assert answer.response.leader == answer.response.member_id == "ana-2"
    assert ana.listed == ["ana-2", ben.member_id]


def test_T42_returning_static_leader_before_version_9_is_not_told_that_it_leads() -> None:
    desk, ana, _ = _static_pair()
    former = ana.member_id
    ana.member_id = ""
    answer = desk.join(ana, version=8)
    assert answer.response.leader == former
    assert answer.response.members == []
    answer.response.write(Writer(), 8)


def test_T42_returning_static_member_with_other_protocols_begins_a_round() -> None:
    desk, _, ben = _static_pair()
    ben.member_id = ""
    ben.protocols = ("sticky", "range")
    assert desk.join(ben).waits


def test_T42_returning_static_member_with_other_topics_begins_a_round() -> None:
    desk, _, ben = _static_pair()
    ben.member_id = ""
    ben.topics = ("u",)
    assert desk.join(ben).waits


def test_T42_metadata_of_other_kinds_of_clients_is_not_compared() -> None:
    desk = Desk()
    (worker,) = desk.stable("w", instance_id="w", protocol_type="connect")
    worker.member_id = ""
    worker.topics = ("u",)
    desk.join(worker)
    assert (worker.member_id, worker.generation) == ("w-2", 1)


def test_T42_all_protocols_of_a_returning_static_member_are_remembered() -> None:
    desk = Desk()
    (ana,) = desk.stable("ana", instance_id="a", protocols=("range", "sticky"))
    ana.member_id = ""
    desk.join(ana)
    assert desk.join(Client("ben", protocols=("sticky",))).waits


def test_T42_static_member_that_returns_in_a_joining_phase_takes_its_own_place() -> None:
    desk, ana, ben = _static_pair()
    lost = desk.join(ana)
    ana.member_id = ""
    again = desk.join(ana)
    assert lost.code is ErrorCode.FENCED_INSTANCE_ID
    assert again.waits
    desk.join(ben)
    assert again.response.leader == ana.member_id == "ana-2"


def test_T42_static_member_that_returns_before_the_plan_begins_a_round() -> None:
    desk, ana, ben = _static_pair()
    desk.join(ana)
    desk.join(ben)
    lost = desk.sync(ben)
    ben.member_id = ""
    desk.join(ben)
    assert lost.code is ErrorCode.FENCED_INSTANCE_ID
    assert desk.group.state_name == "PreparingRebalance"


def test_T42_static_member_that_does_not_join_again_keeps_its_place_for_its_session() -> None:
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


def test_T42_lead_of_a_static_member_that_stays_away_passes_on() -> None:
    desk = Desk()
    ana = Client("ana", instance_id="a", rebalance_ms=5_000, session_ms=30_000)
    ben = Client("ben", rebalance_ms=5_000)
    desk.stabilise(ana, ben)
    ben.topics = ("u",)
    desk.join(ben)
    desk.advance(5_000)
    assert ben.leads
    assert ben.listed == [ana.member_id, ben.member_id]


def test_T42_round_of_static_members_of_which_none_joins_goes_on_until_one_is_back() -> None:
    desk = Desk()
    ana = Client("ana", instance_id="a", rebalance_ms=5_000, session_ms=60_000)
    ben = Client("ben", rebalance_ms=5_000)
    desk.stabilise(ana, ben)
    desk.leave(ben)
    desk.advance(11_000)
    assert desk.group.state_name == "PreparingRebalance"
    desk.join(ana)
    assert ana.generation == 3


def test_empty_instance_id_is_none() -> None:
    desk, ana = Desk(), Client("ana", instance_id="")
    assert desk.send_join(ana).code is ErrorCode.MEMBER_ID_REQUIRED


# --- the answer on the wire ----------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_T41_answers_can_be_written_in_every_version(version: int) -> None:
    desk, ana = Desk(), Client("ana")
    if version >= 4:
        ana.member_id = desk.send_join(ana, version=version).response.member_id
    answer = desk.send_join(ana, version=version)
    writer = Writer()
    answer.response.write(writer, version)
    read = JoinGroupResponse.read(Reader(bytes(writer.buf)), version)
    assert [member.metadata for member in read.members] == [subscription("t")]


@pytest.mark.parametrize("version", range(10))
def test_parked_answers_can_be_refused_in_every_version(version: int) -> None:
    desk = Desk(config(group_initial_rebalance_delay_ms=3_000))
    answer = desk.send_join(
        Client("ana", instance_id="a" if version >= 4 else None), version=version
    )
    desk.reload()
    assert answer.code is ErrorCode.NOT_COORDINATOR
    answer.response.write(Writer(), version)


def test_member_that_went_has_no_deadline_left() -> None:
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    desk.leave(ben)
    desk.leave(ana)
    assert len(desk.surroundings.deadlines) == 0


def test_deadline_of_nobody_changes_nothing() -> None:
    desk = Desk()
    desk.stable("ana")
    for kind in DeadlineKind:
        result = desk.group.deadline_passed(DeadlineKey("g", kind, "nobody"), desk.now)
        assert (result.records, result.replies) == ([], [])
    assert desk.group.state_name == "Stable"
