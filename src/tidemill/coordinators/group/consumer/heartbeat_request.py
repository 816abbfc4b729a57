"""Checks of a ConsumerGroupHeartbeat that do not depend on its sender (T48).

A member's first heartbeat, with epoch 0, has all fields. Later ones have only the fields that
changed: null, or -1 for the timeout, means "unchanged". An empty regular expression means none.
After an error it sends all fields again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.coordinators.group.base.group import Caller
from tidemill.coordinators.group.consumer.members import STATIC_LEAVE_EPOCH
from tidemill.coordinators.group.consumer.records import MemberMetadata
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import CONSUMER_NAME_CHARS_MAX, CONSUMER_SUBSCRIPTION_CHARS_MAX
from tidemill.wire.generated.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

__all__ = ["JOIN_EPOCH", "UNCHANGED_TIMEOUT", "check_heartbeat", "is_full", "metadata_after"]

JOIN_EPOCH = 0
FIRST_WITH_CLIENT_MADE_IDS = 1
UNCHANGED_TIMEOUT = -1


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]
) -> None:
    """KafkaError if the request is not valid for any member."""
    _check_names(request, version)
    if request.member_epoch == JOIN_EPOCH:
        _check_join(request)
    elif request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("only a member with an instance id may leave temporarily")
    elif request.member_epoch < STATIC_LEAVE_EPOCH:
        raise _invalid(f"there is no member epoch {request.member_epoch}")
    if request.rebalance_timeout_ms < UNCHANGED_TIMEOUT:
        raise _invalid("the rebalance timeout is negative")
    named = request.server_assignor
    if named is not None and named not in assignors:
        detail = f"the assignors of this broker are {', '.join(assignors)}"
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, detail)


def _check_names(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    may_lack_id = version < FIRST_WITH_CLIENT_MADE_IDS and request.member_epoch == JOIN_EPOCH
    if not request.member_id.strip() and not may_lack_id:
        raise _invalid("the member has no id")
    if not request.group_id.strip():
        raise _invalid("the group has no name")
    for what, name in (("instance id", request.instance_id), ("rack", request.rack_id)):
        if name is not None and not name.strip():
            raise _invalid(f"the {what} is empty")
    longest = max(map(len, (request.member_id, request.instance_id or "", request.rack_id or "")))
    if longest > CONSUMER_NAME_CHARS_MAX:
        raise _invalid(f"a name has {longest} characters, at most {CONSUMER_NAME_CHARS_MAX}")
    chars = sum(map(len, request.subscribed_topic_names or ()))
    if chars > CONSUMER_SUBSCRIPTION_CHARS_MAX:
        limit = CONSUMER_SUBSCRIPTION_CHARS_MAX
        raise _invalid(f"the subscription has {chars} characters, at most {limit}")


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == UNCHANGED_TIMEOUT:
        raise _invalid("the first heartbeat has no rebalance timeout")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("a member that joins must send an empty list of owned partitions")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("the first heartbeat has no subscription")


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether the request has all fields; its response then has all fields too."""
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != UNCHANGED_TIMEOUT
        and request.subscribed_topic_names is not None
        and request.topic_partitions is not None
    )


def metadata_after(
    request: ConsumerGroupHeartbeatRequest, caller: Caller, before: MemberMetadata
) -> MemberMetadata:
    """The member's metadata after this request; one that joins keeps nothing of a former self."""
    if request.member_epoch == JOIN_EPOCH:
        before = MemberMetadata(instance_id=before.instance_id)
    names = request.subscribed_topic_names
    pattern = request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return MemberMetadata(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        topics=before.topics if names is None else tuple(sorted(set(names))),
        rebalance_timeout_ms=(
            before.rebalance_timeout_ms if timeout_ms == UNCHANGED_TIMEOUT else timeout_ms
        ),
        server_assignor=(
            before.server_assignor if request.server_assignor is None else request.server_assignor
        ),
        pattern=before.pattern if pattern is None else pattern or None,
    )


def _invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)
