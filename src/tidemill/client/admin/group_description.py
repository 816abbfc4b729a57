"""One consumer group as its coordinator sees it.

Each of the two kinds of group has its own request. ConsumerGroupDescribe is answered with
GROUP_ID_NOT_FOUND for a classic group (T44), so both are tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

from tidemill.client.admin.coordinator_client import CoordinatorClient
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import check, single_result
from tidemill.core.errors import ErrorCode, KafkaError, ProtocolViolation
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated import consumer_group_describe as consumer_describe
from tidemill.wire.generated import describe_groups as classic_describe
from tidemill.wire.generated.consumer_protocol_assignment import ConsumerProtocolAssignment
from tidemill.wire.primitives import Reader

__all__ = ["GroupDescription", "GroupMember", "describe_group"]


_CONSUMER_PROTOCOL: Final = "consumer"
"""Protocol type of the classic groups whose assignments we can decode."""
_ASSIGNMENT_OBJECTS_MAX: Final = 200_000


@final
@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member; `instance_id` is set if it is static."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@final
@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group and its members, sorted by id."""

    group_id: str
    kind: str
    """`classic` or `consumer`: the protocol between members and coordinator."""
    state: str
    assignor: str
    coordinator: int
    members: list[GroupMember] = field(default_factory=list)


async def describe_group(cluster: ClusterClient, group: str) -> GroupDescription:
    """The group; raises KafkaError(GROUP_ID_NOT_FOUND) if it does not exist."""
    coordinator = CoordinatorClient(cluster, group)

    async def ask() -> GroupDescription:
        found = await _try_describe_consumer(coordinator, group)
        return found if found is not None else await _describe_classic(coordinator, group)

    return await coordinator.retry(ask)


async def _try_describe_consumer(
    coordinator: CoordinatorClient, group: str
) -> GroupDescription | None:
    """None if the group, or the broker, does not use the consumer protocol."""
    request = consumer_describe.ConsumerGroupDescribeRequest(group_ids=[group])
    try:
        response = await coordinator.ask(request, consumer_describe.ConsumerGroupDescribeResponse)
        found = single_result(response.groups)
        check(found.error_code, found.error_message or f"group {group}")
    except KafkaError as refusal:
        if refusal.code in {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}:
            return None
        raise
    return GroupDescription(
        group,
        "consumer",
        found.group_state,
        found.assignor_name,
        await coordinator.broker_id(),
        sorted(map(_consumer_member, found.members), key=_member_id),
    )


def _consumer_member(member: consumer_describe.Member) -> GroupMember:
    assignment = (
        TopicPartition(topic.topic_name, index)
        for topic in member.assignment.topic_partitions
        for index in topic.partitions
    )
    return GroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        tuple(sorted(assignment)),
    )


async def _describe_classic(coordinator: CoordinatorClient, group: str) -> GroupDescription:
    request = classic_describe.DescribeGroupsRequest(groups=[group])
    response = await coordinator.ask(request, classic_describe.DescribeGroupsResponse)
    found = single_result(response.groups)
    check(found.error_code, found.error_message or f"group {group}")
    if found.group_state == "Dead":  # how versions before 6 report a group that does not exist
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group}")
    readable = found.protocol_type == _CONSUMER_PROTOCOL
    return GroupDescription(
        group,
        "classic",
        found.group_state,
        found.protocol_data,
        await coordinator.broker_id(),
        sorted((_classic_member(m, readable) for m in found.members), key=_member_id),
    )


def _classic_member(member: classic_describe.DescribedGroupMember, readable: bool) -> GroupMember:
    assignment = _assignment(member.member_assignment) if readable else ()
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host.removeprefix("/"),
        assignment,
    )


def _assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions that the group's leader assigned to a member; empty until it has done so."""
    if len(data) < 2:
        return ()
    version = int.from_bytes(data[:2], "big", signed=True)
    readable = min(max(version, 0), ConsumerProtocolAssignment.version_max)
    try:
        plan = ConsumerProtocolAssignment.read(
            Reader(memoryview(data), _ASSIGNMENT_OBJECTS_MAX, 2), readable
        )
    except ProtocolViolation:
        return ()
    return tuple(
        sorted(
            TopicPartition(topic.topic, index)
            for topic in plan.assigned_partitions
            for index in topic.partitions
        )
    )


def _member_id(member: GroupMember) -> str:
    return member.member_id
