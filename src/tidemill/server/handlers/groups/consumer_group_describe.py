"""ConsumerGroupDescribe (69), versions 0..1: epochs, members and assignments of consumer groups.

v1 the protocol of each member; here it is always the consumer protocol.

The answer has every group of the request, classic ones with GROUP_ID_NOT_FOUND: librdkafka asks
here first for every group, and aborts the process if one is missing (T44).
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.server.handlers.groups.group_description import (
    add_authorized_operations,
    describe_each,
    refuse_group,
)
from tidemill.server.request.authorizer import Operation, topic
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

__all__ = ["HANDLER"]


def handle(context: GroupContext, request: ConsumerGroupDescribeRequest) -> Answer:
    return describe_each(
        context,
        request.group_ids,
        DescribedGroup,
        describe=lambda shard, group_id: shard.describe_consumer_group(group_id),
        combine=lambda groups: _combine(context, request, groups),
    )


def _combine(
    context: GroupContext, request: ConsumerGroupDescribeRequest, groups: list[DescribedGroup]
) -> ConsumerGroupDescribeResponse:
    visible = [_visible(context, described) for described in groups]
    add_authorized_operations(context, visible, is_wanted=request.include_authorized_operations)
    return ConsumerGroupDescribeResponse(groups=visible)


def _visible(context: GroupContext, described: DescribedGroup) -> DescribedGroup:
    """The group, or a refusal if its members read topics that the client may not describe."""
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
    return refuse_group(
        DescribedGroup,
        described.group_id,
        KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "its members read topics you may not see"),
    )


def _refuse(
    request: ConsumerGroupDescribeRequest, error: KafkaError
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[refuse_group(DescribedGroup, group_id, error) for group_id in request.group_ids]
    )


HANDLER = Handler(
    api_key=ApiKey.CONSUMER_GROUP_DESCRIBE, versions=(0, 1), handle=handle, refuse=_refuse
)
