"""Identifies the member that sends a ConsumerGroupHeartbeat, and checks that it may (T48, I15).

A member id belongs to one instance id, or to none, for as long as the member exists. An instance id
belongs to one member at a time. Another member may get it only after its holder has left for good,
or has left temporarily; then the new member takes over all its partitions. From a holder that uses
the classic protocol it takes them over at any time, as in that protocol (T42).
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.coordinators.group.consumer.heartbeat_request import JOIN_EPOCH
from tidemill.coordinators.group.consumer.members import ConsumerMember, ConsumerMembers
from tidemill.coordinators.group.consumer.reconciliation import is_within
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

__all__ = ["HeartbeatSender", "identify_leaver", "identify_sender", "unknown_member"]


class HeartbeatSender(NamedTuple):
    """The sender of a heartbeat, and its relation to the group."""

    member: ConsumerMember
    """The member that sent the heartbeat, as it was before."""
    is_known: bool
    """Whether the group has records of this member."""
    replaced: ConsumerMember | None = None
    """The former holder of the instance id; the sender replaces it."""

    @property
    def former(self) -> ConsumerMember:
        """The member whose state the sender continues: the replaced one, or itself."""
        return self.replaced or self.member


def identify_sender(
    members: ConsumerMembers,
    request: ConsumerGroupHeartbeatRequest,
    fresh_member_id: str,
    size_max: int,
) -> HeartbeatSender:
    """The sender. KafkaError: it is neither a member nor allowed to become one."""
    member_id = request.member_id or fresh_member_id
    if request.instance_id is not None:
        sender = _static_sender(members, request, member_id, request.instance_id)
    else:
        sender = _dynamic_sender(members, request, member_id)
    is_one_more = not sender.is_known and sender.replaced is None
    if is_one_more and len(members) >= size_max:
        detail = f"the group has {size_max} members (group.max.size)"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)
    return sender


def identify_leaver(
    members: ConsumerMembers, request: ConsumerGroupHeartbeatRequest
) -> ConsumerMember:
    """The member that leaves; KafkaError if it is not in the group."""
    if request.instance_id is not None:
        return _holder(members, request.member_id, request.instance_id)
    member = members.get(request.member_id)
    if member is None:
        raise unknown_member(request.member_id)
    return member


def unknown_member(member_id: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member of the group")


def _dynamic_sender(
    members: ConsumerMembers, request: ConsumerGroupHeartbeatRequest, member_id: str
) -> HeartbeatSender:
    member = members.get(member_id)
    if member is None:
        if request.member_epoch != JOIN_EPOCH:
            raise unknown_member(member_id)
        return HeartbeatSender(ConsumerMember(member_id), is_known=False)
    if request.member_epoch == JOIN_EPOCH and member.metadata.instance_id is not None:
        raise _other_instance(member)
    _check_epoch(member, request)
    return HeartbeatSender(member, is_known=True)


def _static_sender(
    members: ConsumerMembers,
    request: ConsumerGroupHeartbeatRequest,
    member_id: str,
    instance_id: str,
) -> HeartbeatSender:
    if request.member_epoch != JOIN_EPOCH:
        member = _holder(members, member_id, instance_id)
        _check_epoch(member, request)
        return HeartbeatSender(member, is_known=True)
    holder, known = members.try_holder(instance_id), members.get(member_id)
    if known is not None:
        if known is not holder:
            raise _other_instance(known)
        return HeartbeatSender(known, is_known=True)
    if holder is None:
        return HeartbeatSender(ConsumerMember(member_id), is_known=False)
    if not holder.is_away and not holder.is_classic:
        detail = f"instance {instance_id} is held by member {holder.member_id}"
        raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, detail)
    successor = ConsumerMember(member_id, holder.metadata, holder.current)
    return HeartbeatSender(successor, is_known=False, replaced=holder)


def _holder(members: ConsumerMembers, member_id: str, instance_id: str) -> ConsumerMember:
    """The member; KafkaError unless it holds the instance id that it sends."""
    holder = members.try_holder(instance_id)
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no instance {instance_id}")
    if holder.member_id != member_id:
        detail = f"instance {instance_id} is held by member {holder.member_id}"
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, detail)
    return holder


def _check_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    """FENCED_MEMBER_EPOCH if the member's epoch is not the one that the group knows.

    One epoch behind is valid if the last answer was lost; the member then owns no more than that
    answer assigned. Epoch 0 is always valid: the member starts over and owns nothing.
    """
    current = member.current
    if request.member_epoch in (JOIN_EPOCH, current.member_epoch):
        return
    is_one_behind = request.member_epoch == current.previous_epoch < current.member_epoch
    if is_one_behind and is_within(request.topic_partitions, current.assigned):
        return
    detail = (
        f"the member's epoch is {current.member_epoch}, not {request.member_epoch}: "
        "give up all partitions and join again"
    )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, detail)


def _other_instance(member: ConsumerMember) -> KafkaError:
    detail = f"member {member.member_id} has another instance id than in this request"
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)
