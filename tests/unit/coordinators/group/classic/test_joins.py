"""JoinGroup in a classic group: which clients are admitted, and with which id (T40 to T42)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.classic_desk import (
    SESSION_MS,
    Client,
    Desk,
    config,
    subscription,
)
from tidemill.coordinators.group.base.group import DeadlineKey, DeadlineKind
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    CLASSIC_PROTOCOLS_MAX,
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


def test_T40_unknown_client_of_version_4_is_given_an_id_to_join_again_with():
    desk, ana = Desk(), Client("ana")
    answer = desk.send_join(ana, version=4)
    assert answer.code is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.response.member_id == "ana-1"
    assert answer.response.generation_id == -1
    assert desk.group.is_empty
    desk.send_join(ana, version=4)
    assert ana.generation == 1


def test_T40_unknown_client_of_version_3_is_a_member_at_once():
    desk, ana = Desk(), Client("ana")
    desk.send_join(ana, version=3)
    assert (ana.member_id, ana.generation) == ("ana-1", 1)


def test_T40_unused_id_expires_with_the_session_timeout():
    desk, ana = Desk(), Client("ana")
    desk.send_join(ana)
    desk.advance(SESSION_MS)
    _refused(ErrorCode.UNKNOWN_MEMBER_ID, desk, ana)


def test_T40_joining_phase_waits_for_a_client_that_was_given_an_id():
    desk = Desk()
    (ana,) = desk.stable("ana")
    ben = Client("ben")
    desk.send_join(ben)
    assert desk.join(ana).waits
    desk.send_join(ben)
    assert ana.generation == ben.generation == 2


def test_T40_joining_phase_ends_when_the_id_expires():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.send_join(Client("ben"))
    answer = desk.join(ana)
    desk.advance(SESSION_MS)
    assert answer.response.generation_id == 2


def test_T40_joining_phase_ends_when_the_id_is_given_back():
    desk = Desk()
    (ana,) = desk.stable("ana")
    ben = Client("ben")
    desk.send_join(ben)
    answer = desk.join(ana)
    assert desk.leave(ben).response.members[0].error_code == ErrorCode.NONE
    assert answer.response.generation_id == 2


def test_S38_ids_given_out_are_bounded_and_the_oldest_is_taken_back():
    desk = Desk()
    clients = [Client(f"c{i}") for i in range(PENDING_MEMBER_IDS_MAX + 1)]
    for client in clients:
        desk.send_join(client)
    assert len(desk.context.deadlines) == PENDING_MEMBER_IDS_MAX
    _refused(ErrorCode.UNKNOWN_MEMBER_ID, desk, clients[0])
    assert desk.send_join(clients[1]).waits


def test_T40_unknown_member_id_is_refused_in_an_empty_group_and_in_one_with_members():
    desk, eve = Desk(), Client("eve", member_id="made-up")
    _refused(ErrorCode.UNKNOWN_MEMBER_ID, desk, eve)
    desk.stable("ana")
    _refused(ErrorCode.UNKNOWN_MEMBER_ID, desk, eve)


def test_id_that_was_given_out_cannot_be_used_by_a_static_member():
    desk, ana = Desk(), Client("ana")
    desk.send_join(ana)
    ana.instance_id = "a"
    _refused(ErrorCode.UNKNOWN_MEMBER_ID, desk, ana)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001, -1])
def test_T40_session_timeout_out_of_bounds_is_refused(timeout_ms):
    _refused(ErrorCode.INVALID_SESSION_TIMEOUT, Desk(), Client("ana", session_ms=timeout_ms))


@pytest.mark.parametrize("timeout_ms", [6_000, 1_800_000])
def test_T40_session_timeout_at_the_bounds_is_accepted(timeout_ms):
    desk, ana = Desk(), Client("ana", session_ms=timeout_ms)
    desk.join(ana)
    assert ana.generation == 1


@pytest.mark.parametrize(
    ("protocol_type", "protocols"), [("", ("range",)), ("consumer", ()), ("", ())]
)
def test_T41_first_member_has_to_name_a_type_and_a_protocol(protocol_type, protocols):
    client = Client("ana", protocol_type=protocol_type, protocols=protocols)
    _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, Desk(), client)


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", ("range",)), ("consumer", ("sticky",)), ("consumer", ())],
)
def test_T41_member_that_does_not_suit_the_others_is_refused(protocol_type, protocols):
    desk = Desk()
    desk.stable("ana")
    client = Client("eve", protocol_type=protocol_type, protocols=protocols)
    _refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, desk, client)


def test_group_that_became_empty_admits_members_of_another_type():
    desk = Desk()
    (ana,) = desk.stable("ana")
    desk.leave(ana)
    assert desk.group.protocol_type == "consumer"
    desk.stabilise(Client("w", protocol_type="connect", protocols=("default",)))
    assert desk.group.protocol_type == "connect"


def test_T40_member_beyond_the_maximum_is_refused():
    desk = Desk(config(group_max_size=2))
    desk.stable("ana", "ben")
    _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, desk, Client("eve"))
    assert desk.group.state_name == "Stable"


def test_T40_maximum_holds_in_a_joining_phase_too():
    desk = Desk(config(group_max_size=2, group_initial_rebalance_delay_ms=3_000))
    desk.join(Client("ana"))
    desk.join(Client("ben"))
    _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, desk, Client("eve"))


def test_T42_static_member_may_come_back_to_a_full_group():
    desk = Desk(config(group_max_size=1))
    (ana,) = desk.stable("ana", instance_id="a")
    ana.member_id = ""
    desk.join(ana)
    assert ana.member_id == "ana-2"


def test_lowered_maximum_drops_the_last_members_to_join():
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


def test_S41_member_with_too_many_protocols_is_refused():
    desk, ana = Desk(), Client("ana")
    protocols = _protocols(CLASSIC_PROTOCOLS_MAX + 1, b"")
    _refused(ErrorCode.INVALID_REQUEST, desk, ana, protocols=protocols)
    desk.join(ana, protocols=_protocols(CLASSIC_PROTOCOLS_MAX, b""))
    assert ana.generation == 1


def test_S41_megabyte_of_metadata_is_refused_without_harm_to_other_members():
    desk = Desk()
    (ana,) = desk.stable("ana")
    eve = Client("eve")
    half = bytes(SUBSCRIPTION_BYTES_MAX // 2 + 1)
    _refused(ErrorCode.INVALID_REQUEST, desk, eve, protocols=_protocols(2, half))
    assert desk.heartbeat(ana).code is ErrorCode.NONE


def test_S41_members_whose_metadata_would_not_fit_one_record_are_refused():
    desk = Desk()
    big = [JoinGroupRequestProtocol(name="range", metadata=bytes(SUBSCRIPTION_BYTES_MAX))]
    for name in ("a", "b", "c"):
        desk.send_join(Client(name), version=3, protocols=big)
    _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, desk, Client("eve"), version=3, protocols=big)


# --- the answer on the wire ----------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_T41_answers_can_be_written_in_every_version(version):
    desk, ana = Desk(), Client("ana")
    if version >= 4:
        ana.member_id = desk.send_join(ana, version=version).response.member_id
    answer = desk.send_join(ana, version=version)
    writer = Writer()
    answer.response.write(writer, version)
    read = JoinGroupResponse.read(Reader(bytes(writer.buf)), version)
    assert [member.metadata for member in read.members] == [subscription("t")]


@pytest.mark.parametrize("version", range(10))
def test_parked_answers_can_be_refused_in_every_version(version):
    desk = Desk(config(group_initial_rebalance_delay_ms=3_000))
    answer = desk.send_join(
        Client("ana", instance_id="a" if version >= 4 else None), version=version
    )
    desk.reload()
    assert answer.code is ErrorCode.NOT_COORDINATOR
    answer.response.write(Writer(), version)


def test_member_that_left_has_no_deadline():
    desk = Desk()
    ana, ben = desk.stable("ana", "ben")
    desk.leave(ben)
    desk.leave(ana)
    assert len(desk.context.deadlines) == 0


def test_deadlines_after_a_record_stay_due_until_it_is_replayed():
    desk = Desk()
    (ana,) = desk.stable("ana")
    (session,) = desk.context.deadlines.take_due(desk.ms + SESSION_MS, 1)
    assert session.member_id == ana.member_id
    other = DeadlineKey("g", DeadlineKind.PENDING_JOIN, "late")
    result = desk.group.deadlines_passed([session, other], desk.now)
    assert len(result.records) == 1
    desk.apply(result)
    assert desk.context.deadlines.take_due(desk.ms, 2) == [other]


def test_deadline_of_an_unknown_member_changes_nothing():
    desk = Desk()
    desk.stable("ana")
    for kind in set(DeadlineKind) - {DeadlineKind.TAKEOVER}:
        result = desk.group.deadlines_passed([DeadlineKey("g", kind, "nobody")], desk.now)
        assert (result.records, result.replies) == ([], [])
    assert desk.group.state_name == "Stable"
