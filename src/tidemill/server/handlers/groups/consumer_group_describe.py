"""ConsumerGroupDescribe (69), versions 0..1: epochs, members and assignments of consumer groups.

v1 tells which protocol each member speaks; here it is always the consumer protocol.

Each group that was asked for is in the answer, classic ones with GROUP_ID_NOT_FOUND: librdkafka
asks here first for every group, and aborts the process if one is missing (T44).
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.authorized_operations import authorized_operations
from tidemill.server.request.authorizer import Operation, group, topic
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.joined_answers import answer_each
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

__all__ = ["HANDLER"]


def handle(context: GroupContext, request: ConsumerGroupDescribeRequest) -> Answer:
    return answer_each(
        context,
        request.group_ids,
        lambda group_id: _describe(context, group_id),
        _refuse_group,
        lambda groups: _complete(context, request, groups),
    )


def _describe(context: GroupContext, group_id: str) -> DescribedGroup | Deferred[DescribedGroup]:
    context.require(Operation.DESCRIBE, group(group_id))
    return context.services.groups.read(
        group_id,
        lambda shard, _now: shard.describe_consumer_group(group_id),
        lambda code: _refuse_group(group_id, KafkaError(code)),
    )


def _complete(
    context: GroupContext, request: ConsumerGroupDescribeRequest, groups: list[DescribedGroup]
) -> ConsumerGroupDescribeResponse:
    shown = [_shown(context, described) for described in groups]
    for described in shown:
        if described.error_code == ErrorCode.NONE:
            described.authorized_operations = authorized_operations(
                context, group(described.group_id), request.include_authorized_operations
            )
    return ConsumerGroupDescribeResponse(groups=shown)


def _shown(context: GroupContext, described: DescribedGroup) -> DescribedGroup:
    """The group, or a refusal if its members read topics that the asker must not know of."""
    names = dict.fromkeys(
        name
        for member in described.members
        for name in (
            *member.subscribed_topic_names,
            *(one.topic_name for one in member.assignment.topic_partitions),
            *(one.topic_name for one in member.target_assignment.topic_partitions),
        )
    )
    if all(context.allows(Operation.DESCRIBE, topic(name)) for name in names):
        return described
    return _refuse_group(
        described.group_id,
        KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "its members read topics you may not see"),
    )


def _refuse_group(group_id: str, error: KafkaError) -> DescribedGroup:
    return DescribedGroup(
        group_id=group_id, error_code=int(error.code), error_message=error.detail or None
    )


def _refuse(
    request: ConsumerGroupDescribeRequest, error: KafkaError
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[_refuse_group(group_id, error) for group_id in request.group_ids]
    )


HANDLER = Handler(
    api_key=ApiKey.CONSUMER_GROUP_DESCRIBE, versions=(0, 1), handle=handle, refuse=_refuse
)
