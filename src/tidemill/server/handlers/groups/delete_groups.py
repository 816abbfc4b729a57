"""DeleteGroups (42), versions 0..2: delete groups without members, and their offsets.

v1 as v0; v2 flexible.

A group with more offsets than one batch of the log holds is deleted in several steps: the client
gets the retriable COORDINATOR_LOAD_IN_PROGRESS and repeats the request for the rest.
"""

from __future__ import annotations

from tidemill.core.errors import KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.authorizer import Operation, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.joined_answers import answer_each
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

__all__ = ["HANDLER"]


def handle(context: GroupContext, request: DeleteGroupsRequest) -> Answer:
    return answer_each(
        context,
        list(dict.fromkeys(request.groups_names)),
        lambda group_id: _delete(context, group_id),
        _refuse_group,
        lambda results: DeleteGroupsResponse(results=results),
    )


def _delete(
    context: GroupContext, group_id: str
) -> DeletableGroupResult | Deferred[DeletableGroupResult]:
    context.require(Operation.DELETE, group(group_id))
    return context.services.groups.write(
        group_id,
        lambda shard, _now: shard.delete_group(group_id),
        lambda code: _refuse_group(group_id, KafkaError(code)),
    )


def _refuse_group(group_id: str, error: KafkaError) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=int(error.code))


def _refuse(request: DeleteGroupsRequest, error: KafkaError) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[_refuse_group(group_id, error) for group_id in request.groups_names]
    )


HANDLER = Handler(api_key=ApiKey.DELETE_GROUPS, versions=(0, 2), handle=handle, refuse=_refuse)
