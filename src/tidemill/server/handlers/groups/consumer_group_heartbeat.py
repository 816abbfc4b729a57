"""ConsumerGroupHeartbeat (68), versions 0..1: join, stay in and leave a consumer group.

v1 the client chooses its member id; a subscription may be a regular expression, which matches the
topics that the client may describe.

KIP-848: the answer carries the member's epoch, the heartbeat interval, and its partitions if they
changed. `coordinators/group/consumer/consumer_group.py` has the rules.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.coordinators.group.base.group import Caller
from tidemill.core.errors import KafkaError
from tidemill.server.request.authorizer import Operation, group, topic
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

__all__ = ["HANDLER"]


def handle(context: GroupContext, request: ConsumerGroupHeartbeatRequest) -> Answer:
    context.require(Operation.READ, group(request.group_id))
    for name in request.subscribed_topic_names or ():
        context.require(Operation.DESCRIBE, topic(name))
    caller = Caller(
        client_id=context.client_id,
        client_host=f"/{context.peer.client_address}",
        fresh_member_id="" if request.member_id else str(context.services.rng.uuid()),
        sees_topic=_sees_topic(context),
    )
    return context.services.groups.write(
        request.group_id,
        lambda shard, now: shard.consumer_heartbeat(
            request, caller, version=context.version, now=now
        ),
        lambda code: _refuse(request, KafkaError(code)),
    )


def _sees_topic(context: GroupContext) -> Callable[[str], bool]:
    """Without the context: a group may keep it longer than the request takes."""
    authorizer, principal = context.services.authorizer, context.peer.principal
    return lambda name: authorizer.allows(principal, Operation.DESCRIBE, topic(name))


def _refuse(
    _request: ConsumerGroupHeartbeatRequest, error: KafkaError
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=int(error.code), error_message=error.detail or None
    )


HANDLER = Handler(
    api_key=ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1), handle=handle, refuse=_refuse
)
