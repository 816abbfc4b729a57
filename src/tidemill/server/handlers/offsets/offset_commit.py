"""OffsetCommit (8), versions 2..10: store how far a group has read (T46).

v3 throttle time; v5 no retention time; v6 leader epochs; v7 static members; v8 flexible; v9 member
epochs (KIP-848), GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH; v10 topic ids.

The answer leaves when the offsets are committed in `__consumer_offsets`. A client that is not a
member (generation -1, no member id) may commit while the group is empty, which creates the group if
need be. Any offset is accepted, as in Kafka: the end of the log is not known here, and some clients
commit negative offsets to be sent to the start or the end.

Left out: the retention time of versions up to 4; the broker's own applies, as in Kafka.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred, join_deferred
from tidemill.server.handlers.offsets.topic_permission import allows_topic
from tidemill.server.request.authorizer import Operation, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, FastCodec, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidemill.wire.offset_commit_fast import try_encode_response, try_read_request

__all__ = ["HANDLER"]


def handle(context: GroupContext, request: OffsetCommitRequest) -> Answer:
    context.require(Operation.READ, group(request.group_id))
    allowed = [one for one in request.topics if _may_read(context, one)]
    if len(allowed) == len(request.topics):
        return _commit(context, request)
    return _commit_some(context, request, allowed)


def _commit(
    context: GroupContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Deferred[OffsetCommitResponse]:
    version = context.version
    return context.services.groups.write(
        request.group_id,
        lambda shard, now: shard.offsets.commit(request, version=version, now=now),
        lambda code: _refuse(request, KafkaError(code)),
    )


def _commit_some(
    context: GroupContext, request: OffsetCommitRequest, allowed: list[OffsetCommitRequestTopic]
) -> Answer:
    error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    context.services.telemetry.count_error(error.code)
    forbidden = [one for one in request.topics if not _may_read(context, one)]
    refused = [_refuse_topic(one, error) for one in forbidden]
    if not allowed:
        return OffsetCommitResponse(topics=refused)
    request.topics = allowed
    return join_deferred(
        [_commit(context, request)],
        lambda answers: OffsetCommitResponse(topics=answers[0].topics + refused),
    )


def _may_read(context: GroupContext, wanted: OffsetCommitRequestTopic) -> bool:
    return allows_topic(context, Operation.READ, name=wanted.name, topic_id=wanted.topic_id)


def _refuse(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[_refuse_topic(one, error) for one in request.topics])


def _refuse_topic(wanted: OffsetCommitRequestTopic, error: KafkaError) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=wanted.name,
        topic_id=wanted.topic_id,
        partitions=[
            OffsetCommitResponsePartition(
                partition_index=one.partition_index, error_code=int(error.code)
            )
            for one in wanted.partitions
        ],
    )


HANDLER = Handler(
    api_key=ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    handle=handle,
    refuse=_refuse,
    fast=FastCodec(try_read_request, try_encode_response),
)
