"""Heartbeat (12), versions 0..4: a member of a classic group is alive, and learns of a rebalance.

v1 throttle time; v3 static members (T42); v4 flexible.

While the coordinator loads, the answer is no error, as Kafka's is: session timers begin afterwards,
and some clients leave their group at any error that they do not expect here.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.server.request.authorizer import Operation, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse

__all__ = ["HANDLER"]


def handle(context: GroupContext, request: HeartbeatRequest) -> Answer:
    context.require(Operation.READ, group(request.group_id))
    return context.services.groups.write(
        request.group_id,
        lambda shard, now: shard.heartbeat(request, now=now),
        lambda code: _refuse(request, KafkaError(code)),
    )


def _refuse(_request: HeartbeatRequest, error: KafkaError) -> HeartbeatResponse:
    is_loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=int(ErrorCode.NONE if is_loading else error.code))


HANDLER = Handler(api_key=ApiKey.HEARTBEAT, versions=(0, 4), handle=handle, refuse=_refuse)
