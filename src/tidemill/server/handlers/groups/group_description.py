"""The common part of DescribeGroups and ConsumerGroupDescribe.

Each group's shard is asked separately, and each group is refused separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tidemill.coordinators.group.shard import GroupShard
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.authorized_operations import authorized_operations
from tidemill.server.request.authorizer import Operation, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer
from tidemill.server.request.joined_answers import answer_each
from tidemill.wire.message import Message

__all__ = ["add_authorized_operations", "describe_each", "refuse_group"]


class Described(Protocol):
    """What the two APIs' classes for one group have in common."""

    group_id: str
    error_code: int
    authorized_operations: int


GroupT = TypeVar("GroupT", bound=Described)


def describe_each(
    context: GroupContext,
    group_ids: Sequence[str],
    make_group: Callable[..., GroupT],
    *,
    describe: Callable[[GroupShard, str], GroupT],
    combine: Callable[[list[GroupT]], Message],
) -> Answer:
    """Ask the shard of each group, and combine the descriptions and refusals in order."""

    def refuse(group_id: str, error: KafkaError) -> GroupT:
        return refuse_group(make_group, group_id, error)

    def ask(group_id: str) -> GroupT | Deferred[GroupT]:
        context.require(Operation.DESCRIBE, group(group_id))
        return context.services.groups.read(
            group_id,
            lambda shard, _now: describe(shard, group_id),
            lambda code: refuse(group_id, KafkaError(code)),
        )

    return answer_each(context, group_ids, ask, refuse, combine)


def refuse_group(make_group: Callable[..., GroupT], group_id: str, error: KafkaError) -> GroupT:
    return make_group(
        group_id=group_id, error_code=int(error.code), error_message=error.detail or None
    )


def add_authorized_operations(
    context: GroupContext, groups: Sequence[Described], *, is_wanted: bool
) -> None:
    """What the client may do with each group that was described, if the request wants it."""
    for described in groups:
        if described.error_code == ErrorCode.NONE:
            described.authorized_operations = authorized_operations(
                context, group(described.group_id), is_wanted
            )
