"""JoinGroup (11), versions 0..9: become a member, wait for the others, learn the generation.

v1 rebalance timeout; v2 throttle time; v4 a new member gets its id first (T40); v5 static members
(T42); v6 flexible; v7 protocol type, nullable protocol name (T41); v8 a reason; v9 a returning
static leader may skip the assignment.

The answer waits until all members have joined or the rebalance timeout is over.
`coordinators/group/classic/classic_group.py` has the rules.
"""

from __future__ import annotations

from tidemill.coordinators.group.base.group import Caller
from tidemill.core.errors import KafkaError
from tidemill.server.request.authorizer import Operation, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse

__all__ = ["HANDLER"]


def handle(context: GroupContext, request: JoinGroupRequest) -> Answer:
    context.require(Operation.READ, group(request.group_id))
    name = request.group_instance_id or context.client_id
    caller = Caller(
        client_id=context.client_id,
        client_host=f"/{context.peer.client_address}",
        fresh_member_id=f"{name}-{context.services.rng.uuid()}",
    )
    return context.services.groups.write(
        request.group_id,
        lambda shard, now: shard.join(request, caller, version=context.version, now=now),
        lambda code: _refuse(request, KafkaError(code)),
    )


def _refuse(request: JoinGroupRequest, error: KafkaError) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=int(error.code),
        generation_id=-1,
        protocol_name="",
        leader="",
        member_id=request.member_id,
    )


HANDLER = Handler(api_key=ApiKey.JOIN_GROUP, versions=(0, 9), handle=handle, refuse=_refuse)
