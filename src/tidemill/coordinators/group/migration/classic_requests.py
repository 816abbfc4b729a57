"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of members in a consumer group (KIP-848).

While a group changes its protocol, some members still use the classic one. Each of their rounds is
one step of the consumer protocol, and no request waits for another member:

- JoinGroup is a heartbeat of the consumer protocol with all fields: the embedded subscription says
  which topics the member wants and which partitions it still owns. The generation in its answer is
  the member's epoch, and there is no leader.
- SyncGroup answers with the partitions that the member has now.
- Heartbeat says REBALANCE_IN_PROGRESS if the member's next join would change something: there is a
  newer target, it must give up partitions, or partitions that it waits for are free.

A member that was told to join again, or that joined and does not ask for its assignment, is fenced
after its rebalance timeout (T47).
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.coordinators.group.base.embedded_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    EmbeddedSubscription,
    encode_assignment,
    partitions_by_id,
    try_subscription,
)
from tidemill.coordinators.group.base.group import Caller, DeadlineKind
from tidemill.coordinators.group.classic.joins import (
    MEMBER_ID_REQUIRED_SINCE,
    Join,
    check_session_timeout,
)
from tidemill.coordinators.group.classic.messages import leave_response
from tidemill.coordinators.group.consumer.consumer_group import ConsumerGroup
from tidemill.coordinators.group.consumer.heartbeat_request import check_heartbeat
from tidemill.coordinators.group.consumer.heartbeat_sender import HeartbeatSender, unknown_member
from tidemill.coordinators.group.consumer.members import ConsumerMember
from tidemill.coordinators.group.consumer.reconciliation import MemberState
from tidemill.coordinators.group.consumer.records import ClassicProtocols
from tidemill.coordinators.group.migration.downgrade import try_downgrade
from tidemill.coordinators.runtime.shard import Now, Result
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from tidemill.wire.generated.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from tidemill.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse

__all__ = ["heartbeat", "join", "leave", "sync"]

FULL_HEARTBEAT_VERSION = 1


# --- JoinGroup -----------------------------------------------------------------------------------


def join(
    group: ConsumerGroup, request: JoinGroupRequest, caller: Caller, *, version: int, now: Now
) -> Result[JoinGroupResponse]:
    """The member takes one step towards its target. KafkaError: refused."""
    asked = Join.of(request, caller, version=version, now=now)
    check_session_timeout(asked, group.context.config)
    subscription = _check_protocols(group, asked)
    is_dynamic = asked.instance_id is None
    if not asked.member_id and is_dynamic and version >= MEMBER_ID_REQUIRED_SINCE:
        return Result(asked.refusal(ErrorCode.MEMBER_ID_REQUIRED, caller.fresh_member_id))
    sender = _sender(group, asked, owns=bool(subscription.content.owned_partitions))
    step = _heartbeat_of(group, asked, sender, subscription)
    check_heartbeat(step, FULL_HEARTBEAT_VERSION, group.context.config.consumer_assignors)
    classic = ClassicProtocols(request.session_timeout_ms, tuple(asked.protocols.items()))
    result = group.advance(step, caller, sender, now, classic=classic)
    _set_deadlines(group, asked, sender.member.member_id)
    assert isinstance(result.response, ConsumerGroupHeartbeatResponse)
    response = JoinGroupResponse(
        generation_id=result.response.member_epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=next(iter(asked.protocols)),
        member_id=sender.member.member_id,
    )
    return Result(response, result.records)


def _check_protocols(group: ConsumerGroup, asked: Join) -> EmbeddedSubscription:
    """The subscription in the member's preferred protocol. INCONSISTENT_GROUP_PROTOCOL: none."""
    preferred = next(iter(asked.protocols.values()), b"")
    subscription = try_subscription(preferred)
    suits = asked.request.protocol_type == CONSUMER_PROTOCOL_TYPE and subscription is not None
    if not suits or not group.members.classic_support.has_common(asked.protocols):
        detail = "the group's members are consumers, and have no such protocol in common"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, detail)
    assert subscription is not None
    return subscription


def _sender(group: ConsumerGroup, asked: Join, *, owns: bool) -> HeartbeatSender:
    """The member, which may be new. KafkaError: its instance id has another member, or no room.

    A member that was fenced without noticing still owns what others may read now. It must lose its
    id first, and its partitions with it (I26); Kafka takes it back with its old id.
    """
    members, instance_id = group.members, asked.instance_id
    member_id = asked.member_id or asked.caller.fresh_member_id
    holder = None if instance_id is None else members.try_holder(instance_id)
    if instance_id is not None and asked.member_id:
        return HeartbeatSender(_identified(group, member_id, instance_id), is_known=True)
    if holder is not None:
        successor = ConsumerMember(member_id, holder.metadata, holder.current)
        return HeartbeatSender(successor, is_known=False, replaced=holder)
    known = members.get(member_id)
    if known is not None:
        return HeartbeatSender(known, is_known=True)
    if owns:
        raise unknown_member(member_id)
    size_max = group.context.config.group_max_size
    if len(members) >= size_max:
        detail = f"the group has {size_max} members (group.max.size)"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)
    return HeartbeatSender(ConsumerMember(member_id), is_known=False)


def _heartbeat_of(
    group: ConsumerGroup, asked: Join, sender: HeartbeatSender, subscription: EmbeddedSubscription
) -> ConsumerGroupHeartbeatRequest:
    """The join as a heartbeat with all fields; a member that is new owns nothing."""
    content = subscription.content
    owned = partitions_by_id(content.owned_partitions, group.context.image)
    return ConsumerGroupHeartbeatRequest(
        group_id=group.group_id,
        member_id=sender.member.member_id,
        member_epoch=sender.member.current.member_epoch if sender.is_known else 0,
        instance_id=asked.instance_id,
        rack_id=content.rack_id or None,
        rebalance_timeout_ms=asked.rebalance_timeout_ms,
        subscribed_topic_names=content.topics,
        subscribed_topic_regex="",
        topic_partitions=[
            RequestTopicPartitions(topic_id=topic_id, partitions=list(numbers))
            for topic_id, numbers in (owned.items() if sender.is_known else ())
        ],
    )


def _set_deadlines(group: ConsumerGroup, asked: Join, member_id: str) -> None:
    """The session with the timeout that it asks for; it must ask for its assignment in time."""
    deadlines, now = group.deadlines, asked.now
    deadlines.met(DeadlineKind.PENDING_JOIN, member_id)
    deadlines.set(DeadlineKind.SESSION, member_id, asked.request.session_timeout_ms, now)
    deadlines.set(DeadlineKind.SYNC, member_id, asked.rebalance_timeout_ms, now)


# --- members -------------------------------------------------------------------------------------


class _Current(NamedTuple):
    """A member that uses the classic protocol, in its own epoch."""

    member: ConsumerMember
    classic: ClassicProtocols


def _current_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> _Current:
    member = _identified(group, member_id, instance_id)
    classic = member.metadata.classic
    if classic is None:
        raise unknown_member(member_id)
    epoch = member.current.member_epoch
    if generation != epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"{generation} is not {epoch}")
    return _Current(member, classic)


def _identified(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """The member. KafkaError: unknown, or its instance id has a newer member."""
    if instance_id:
        holder = group.members.try_holder(instance_id)
        if holder is not None and holder.member_id != member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, instance_id)
        if holder is None:
            raise unknown_member(member_id)
    member = group.members.get(member_id)
    if member is None:
        raise unknown_member(member_id)
    return member


def sync(group: ConsumerGroup, request: SyncGroupRequest, *, now: Now) -> Result[SyncGroupResponse]:
    """SyncGroup: the partitions that the member has now."""
    member, classic = _current_member(
        group, request.member_id, request.group_instance_id, request.generation_id
    )
    name, metadata = classic.protocols[0]
    wanted = request.protocol_type, request.protocol_name
    for asked, actual in zip(wanted, (CONSUMER_PROTOCOL_TYPE, name), strict=True):
        if asked is not None and asked != actual:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{asked!r}")
    is_revoking = member.current.state is MemberState.UNREVOKED_PARTITIONS
    if not is_revoking and group.plan.has_newer_target(member, now):
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    group.deadlines.met(DeadlineKind.SYNC, request.member_id)
    group.deadlines.extend_session(request.member_id, now)
    subscription = try_subscription(metadata)
    response = SyncGroupResponse(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=name,
        assignment=encode_assignment(
            member.current.assigned,
            group.context.image,
            0 if subscription is None else subscription.version,
        ),
    )
    return Result(response)


def heartbeat(
    group: ConsumerGroup, request: HeartbeatRequest, *, now: Now
) -> Result[HeartbeatResponse]:
    """Heartbeat: REBALANCE_IN_PROGRESS if the member's next join would change something.

    If a static member of the new protocol was the last one and came back with the classic one, no
    member has left: then the next heartbeat makes the group a classic one.
    """
    member, _ = _current_member(
        group, request.member_id, request.group_instance_id, request.generation_id
    )
    group.deadlines.extend_session(member.member_id, now)
    is_all_classic = group.members.classic_count == len(group.members)
    if is_all_classic and group.stays_in_epoch != group.epoch:
        downgraded = try_downgrade(group, (), now)
        if downgraded is not None:
            response = HeartbeatResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS))
            return Result(response, downgraded)
        group.stays_in_epoch = group.epoch
    if _must_join(group, member, now):
        timeout_ms = member.metadata.rebalance_timeout_ms
        group.deadlines.expect(DeadlineKind.PENDING_JOIN, member.member_id, timeout_ms, now)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    return Result(HeartbeatResponse())


def _must_join(group: ConsumerGroup, member: ConsumerMember, now: Now) -> bool:
    state = member.current.state
    if state is MemberState.UNREVOKED_PARTITIONS or group.plan.has_newer_target(member, now):
        return True
    waits = state is MemberState.UNRELEASED_PARTITIONS
    return waits and not group.plan.waits_for_others(member)


# --- LeaveGroup ----------------------------------------------------------------------------------


def leave(
    group: ConsumerGroup, request: LeaveGroupRequest, *, version: int, now: Now
) -> Result[LeaveGroupResponse]:
    """LeaveGroup, also of members of the new protocol that are named by their instance id."""
    gone: dict[str, ConsumerMember] = {}

    def take_leave(who: MemberIdentity) -> ErrorCode:
        try:
            member = _leaver(group, who)
        except KafkaError as refusal:
            return refusal.code
        if member.member_id in gone:
            return ErrorCode.UNKNOWN_MEMBER_ID
        gone[member.member_id] = member
        return ErrorCode.NONE

    response = leave_response(request, version, take_leave)
    return Result(response, group.fence(list(gone.values()), now) if gone else [])


def _leaver(group: ConsumerGroup, who: MemberIdentity) -> ConsumerMember:
    if not who.member_id and who.group_instance_id:  # administrators do not know member ids
        holder = group.members.try_holder(who.group_instance_id)
        if holder is None:
            raise unknown_member(who.group_instance_id)
        return holder
    member = _identified(group, who.member_id, who.group_instance_id)
    if not member.is_classic:
        raise unknown_member(who.member_id)
    return member
