"""ListGroups (16), versions 0..5: the groups that this broker coordinates.

v1 throttle time; v3 flexible; v4 states, and a filter by them; v5 types, and a filter by them.

Both filters ignore case and may name unknown states and types. A client that may not describe the
cluster sees the groups that it may describe. While some groups are being loaded the request is
refused: the client would take a partial list for the whole.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.pacing import Pacer
from tidemill.server.request.authorizer import Operation, cluster, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.list_groups import ListGroupsRequest, ListGroupsResponse

__all__ = ["HANDLER"]

SHARDS_PER_SLICE = 1


def handle(context: GroupContext, request: ListGroupsRequest) -> Answer:
    if context.services.groups.is_loading:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return _list(context, request)


async def _list(context: GroupContext, request: ListGroupsRequest) -> ListGroupsResponse:
    states = {state.lower() for state in request.states_filter}
    types = {one.lower() for one in request.types_filter}
    response = ListGroupsResponse()
    sees_all = context.allows(Operation.DESCRIBE, cluster())
    pacer = Pacer(SHARDS_PER_SLICE)
    for shard in list(context.services.groups.shards()):
        await pacer.step()
        response.groups.extend(
            listed
            for listed in shard.list_groups(states, types)
            if sees_all or context.allows(Operation.DESCRIBE, group(listed.group_id))
        )
    return response


HANDLER = Handler(
    api_key=ApiKey.LIST_GROUPS,
    versions=(0, 5),
    handle=handle,
    refuse=refuse_with_error_code(ListGroupsResponse),
)
