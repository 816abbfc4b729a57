"""LeaveGroup (13), versions 0..5: a member leaves, or an administrator removes members.

v1 throttle time; v3 several members, by id or by instance id (T42); v4 flexible; v5 a reason.
"""

from __future__ import annotations

from tidemill.core.errors import KafkaError
from tidemill.server.request.authorizer import Operation, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse

__all__ = ["HANDLER"]


def handle(context: GroupContext, request: LeaveGroupRequest) -> Answer:
    context.require(Operation.READ, group(request.group_id))
    return context.services.groups.write(
        request.group_id,
        lambda shard, now: shard.leave(request, version=context.version, now=now),
        lambda code: _refuse(request, KafkaError(code)),
    )


def _refuse(_request: LeaveGroupRequest, error: KafkaError) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=int(error.code))


HANDLER = Handler(api_key=ApiKey.LEAVE_GROUP, versions=(0, 5), handle=handle, refuse=_refuse)
