"""DescribeGroups (15), versions 0..6: state, protocol and members of classic groups.

v1 throttle time; v3 what the asker may do; v4 static members; v5 flexible; v6 GROUP_ID_NOT_FOUND
and a message for groups that do not exist, which are "Dead" without an error before.

Groups of the consumer protocol count as not found: ConsumerGroupDescribe knows them (T44).
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.authorized_operations import authorized_operations
from tidemill.server.request.authorizer import Operation, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.joined_answers import answer_each
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

__all__ = ["HANDLER"]

FIRST_WITH_NOT_FOUND = 6
DEAD = "Dead"


def handle(context: GroupContext, request: DescribeGroupsRequest) -> Answer:
    return answer_each(
        context,
        request.groups,
        lambda group_id: _describe(context, group_id),
        _refuse_group,
        lambda groups: _complete(context, request, groups),
    )


def _describe(context: GroupContext, group_id: str) -> DescribedGroup | Deferred[DescribedGroup]:
    context.require(Operation.DESCRIBE, group(group_id))
    return context.services.groups.read(
        group_id,
        lambda shard, _now: shard.describe_classic_group(group_id),
        lambda code: _refuse_group(group_id, KafkaError(code)),
    )


def _complete(
    context: GroupContext, request: DescribeGroupsRequest, groups: list[DescribedGroup]
) -> DescribeGroupsResponse:
    for described in groups:
        if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            described.group_state = DEAD
            if context.version < FIRST_WITH_NOT_FOUND:
                described.error_code = int(ErrorCode.NONE)
        if context.version < FIRST_WITH_NOT_FOUND:
            described.error_message = None
        if described.error_code == ErrorCode.NONE:
            described.authorized_operations = authorized_operations(
                context, group(described.group_id), request.include_authorized_operations
            )
    return DescribeGroupsResponse(groups=groups)


def _refuse_group(group_id: str, error: KafkaError) -> DescribedGroup:
    return DescribedGroup(
        group_id=group_id, error_code=int(error.code), error_message=error.detail or None
    )


def _refuse(request: DescribeGroupsRequest, error: KafkaError) -> DescribeGroupsResponse:
    code = int(error.code)
    return DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=one, error_code=code) for one in request.groups]
    )


HANDLER = Handler(api_key=ApiKey.DESCRIBE_GROUPS, versions=(0, 6), handle=handle, refuse=_refuse)
