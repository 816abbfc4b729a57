"""OffsetDelete (47), version 0: delete the committed offsets of a group for some partitions.

A group with members keeps the offsets of the topics that they subscribe to
(GROUP_SUBSCRIBED_TO_TOPIC). If their subscriptions are unknown, because they are not consumers, it
keeps all offsets (NON_EMPTY_GROUP). A partition without an offset is not an error.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode
from tidemill.core.loop.deferred import join_deferred
from tidemill.server.request.authorizer import Operation, group, topic
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

__all__ = ["HANDLER"]


def handle(context: GroupContext, request: OffsetDeleteRequest) -> Answer:
    context.require(Operation.DELETE, group(request.group_id))
    asked = request.topics
    request.topics = [one for one in asked if _may_read(context, one)]
    forbidden = [one for one in asked if not _may_read(context, one)]
    answer = context.services.groups.write(
        request.group_id,
        lambda shard, _now: shard.offsets.delete(request),
        lambda code: OffsetDeleteResponse(error_code=int(code)),
    )
    return join_deferred([answer], lambda answers: _with_refused(answers[0], forbidden))


def _may_read(context: GroupContext, wanted: OffsetDeleteRequestTopic) -> bool:
    return context.allows(Operation.READ, topic(wanted.name))


def _with_refused(
    answer: OffsetDeleteResponse, forbidden: list[OffsetDeleteRequestTopic]
) -> OffsetDeleteResponse:
    answer.topics = answer.topics + [_refuse_topic(one) for one in forbidden]
    return answer


def _refuse_topic(wanted: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
    code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return OffsetDeleteResponseTopic(
        name=wanted.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in wanted.partitions
        ],
    )


HANDLER = Handler(
    api_key=ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    handle=handle,
    refuse=refuse_with_error_code(OffsetDeleteResponse),
)
