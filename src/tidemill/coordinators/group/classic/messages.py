"""A classic group's responses, descriptions and records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tidemill.coordinators.group.classic.members import ClassicMember
from tidemill.core.error_codes import ErrorCode
from tidemill.wire.generated.describe_groups import DescribedGroupMember
from tidemill.wire.generated.group_metadata_record import MemberMetadata
from tidemill.wire.generated.join_group import JoinGroupResponse, JoinGroupResponseMember
from tidemill.wire.generated.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from tidemill.wire.generated.sync_group import SyncGroupResponse

__all__ = [
    "described_members",
    "join_refusal",
    "leave_response",
    "listed_members",
    "recorded_members",
    "sync_refusal",
]

_LEAVE_SEVERAL_SINCE = 3
_PROTOCOL_NAME_NULLABLE_SINCE = 7


def join_refusal(member_id: str, version: int) -> Callable[[ErrorCode], JoinGroupResponse]:
    """Makes the response that refuses a JoinGroup of this version."""
    name = None if version >= _PROTOCOL_NAME_NULLABLE_SINCE else ""

    def refuse(code: ErrorCode) -> JoinGroupResponse:
        return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=name)

    return refuse


def sync_refusal(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)


def leave_response(
    request: LeaveGroupRequest, version: int, take_leave: Callable[[MemberIdentity], ErrorCode]
) -> LeaveGroupResponse:
    """LeaveGroup names one member or, from version 3 on, several, each with its own answer."""
    if version < _LEAVE_SEVERAL_SINCE:
        return LeaveGroupResponse(
            error_code=take_leave(MemberIdentity(member_id=request.member_id))
        )
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=who.member_id,
                group_instance_id=who.group_instance_id,
                error_code=take_leave(who),
            )
            for who in request.members
        ]
    )


def listed_members(
    members: Iterable[ClassicMember], protocol: str
) -> list[JoinGroupResponseMember]:
    """For the leader, which makes the plan; no other member gets the list (T41)."""
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.protocols[protocol],
        )
        for member in members
    ]


def recorded_members(
    members: Iterable[ClassicMember], protocol: str, plan: Mapping[str, bytes]
) -> list[MemberMetadata]:
    """For the log; a member that the plan does not name gets an empty assignment."""
    return [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.protocols[protocol],
            assignment=plan.get(member.member_id, b""),
        )
        for member in members
    ]


def described_members(
    members: Iterable[ClassicMember], protocol: str | None
) -> list[DescribedGroupMember]:
    """For DescribeGroups; without a chosen protocol the metadata is empty.

    The assignment is the one of the last plan, by which members work until the next one (T44).
    """
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=b"" if protocol is None else member.protocols[protocol],
            member_assignment=member.assignment,
        )
        for member in members
    ]
