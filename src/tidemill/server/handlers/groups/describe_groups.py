"""DescribeGroups (15), versions 0..6: state, protocol and members of classic groups.

v1 throttle time; v3 authorized operations; v4 static members; v5 flexible; v6 GROUP_ID_NOT_FOUND
and a message for groups that do not exist. Before v6 these are "Dead" without an error.

Groups of the consumer protocol count as not found: ConsumerGroupDescribe knows them (T44).
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.server.handlers.groups.group_description import (
    add_authorized_operations,
    describe_each,
)
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
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
    return describe_each(
        context,
        request.groups,
        DescribedGroup,
        describe=lambda shard, group_id: shard.describe_classic_group(group_id),
        combine=lambda groups: _combine(context, request, groups),
    )


def _combine(
    context: GroupContext, request: DescribeGroupsRequest, groups: list[DescribedGroup]
) -> DescribeGroupsResponse:
    for described in groups:
        if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            described.group_state = DEAD
            if context.version < FIRST_WITH_NOT_FOUND:
                described.error_code = int(ErrorCode.NONE)
        if context.version < FIRST_WITH_NOT_FOUND:
            described.error_message = None
    add_authorized_operations(context, groups, is_wanted=request.include_authorized_operations)
    return DescribeGroupsResponse(groups=groups)


def _refuse(request: DescribeGroupsRequest, error: KafkaError) -> DescribeGroupsResponse:
    code = int(error.code)
    return DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=one, error_code=code) for one in request.groups]
    )


HANDLER = Handler(api_key=ApiKey.DESCRIBE_GROUPS, versions=(0, 6), handle=handle, refuse=_refuse)
