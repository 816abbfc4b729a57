"""SyncGroup (14), versions 0..5: the leader sends the assignment, each member gets its part.

v1 throttle time; v3 static members (T42); v4 flexible; v5 protocol type and name (T41).

The answer waits until the leader has sent the assignment and it is committed.
"""

from __future__ import annotations

from tidemill.core.errors import KafkaError
from tidemill.server.request.authorizer import Operation, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse

__all__ = ["HANDLER"]


def handle(context: GroupContext, request: SyncGroupRequest) -> Answer:
    context.require(Operation.READ, group(request.group_id))
    return context.services.groups.write(
        request.group_id,
        lambda shard, now: shard.sync(request, now=now),
        lambda code: _refuse(request, KafkaError(code)),
    )


def _refuse(_request: SyncGroupRequest, error: KafkaError) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=int(error.code))


HANDLER = Handler(api_key=ApiKey.SYNC_GROUP, versions=(0, 5), handle=handle, refuse=_refuse)
