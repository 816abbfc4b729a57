"""OffsetFetch (9), versions 1..10: the committed offsets of groups (T45).

v2 all topics of a group, an error for the whole request; v3 throttle time; v5 leader epochs; v6
flexible; v7 only offsets that no open transaction may change; v8 several groups; v9 member epochs
(KIP-848); v10 topic ids.

A partition without a committed offset is answered with -1 and no error, also in an unknown group.
The answer shows only offsets that are committed in `__consumer_offsets`, so no later reader sees an
older state (I28). An offset that an open transaction may still change is refused with
UNSTABLE_OFFSET_COMMIT if the client asks for stable ones; else the last committed one is given.

For librdkafka so is every offset while this coordinator loads, where another broker coordinates, or
if a commit that the answer waits for is not stored in time: it asks again about single partitions
only, and after an error for the group it would never begin to read them (its issue 5586). Its
heartbeats find the other broker.
"""

from __future__ import annotations

from functools import partial

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred, join_deferred
from tidemill.server.handlers.offsets.topic_permission import allows_topic
from tidemill.server.request.authorizer import Operation, group
from tidemill.server.request.context import GroupContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.joined_answers import answer_each
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

__all__ = ["HANDLER"]

FIRST_WITH_ERROR = 2
FIRST_WITH_SEVERAL_GROUPS = 8
NO_OFFSET = -1
_NOT_READY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def handle(context: GroupContext, request: OffsetFetchRequest) -> Answer:
    wanted, combine = request.groups, _with_groups
    if context.version < FIRST_WITH_SEVERAL_GROUPS:
        wanted, combine = [_as_group(request)], _without_groups
    stable = request.require_stable
    return answer_each(
        context,
        wanted,
        lambda one: _fetch(context, one, require_stable=stable),
        partial(_refuse_group, context, require_stable=stable),
        combine,
    )


def _fetch(
    context: GroupContext, wanted: OffsetFetchRequestGroup, *, require_stable: bool
) -> OffsetFetchResponseGroup | Deferred[OffsetFetchResponseGroup]:
    context.require(Operation.DESCRIBE, group(wanted.group_id))
    if wanted.topics is None:
        found = _read(context, wanted, require_stable=require_stable)
        return join_deferred([found], lambda groups: _visible(context, groups[0]))
    allowed = [one for one in wanted.topics if _may_describe(context, one)]
    if len(allowed) == len(wanted.topics):
        return _read(context, wanted, require_stable=require_stable)
    forbidden = [one for one in wanted.topics if not _may_describe(context, one)]
    refused = [_refuse_topic(one, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for one in forbidden]
    to_read = OffsetFetchRequestGroup(
        group_id=wanted.group_id,
        member_id=wanted.member_id,
        member_epoch=wanted.member_epoch,
        topics=allowed,
    )
    found = _read(context, to_read, require_stable=require_stable)
    return join_deferred([found], lambda groups: _with_refused(groups[0], refused))


def _read(
    context: GroupContext, wanted: OffsetFetchRequestGroup, *, require_stable: bool
) -> OffsetFetchResponseGroup | Deferred[OffsetFetchResponseGroup]:
    version = context.version
    return context.services.groups.read(
        wanted.group_id,
        lambda shard, _now: shard.offsets.fetch(
            wanted, version=version, require_stable=require_stable
        ),
        lambda code: _refuse_group(
            context, wanted, KafkaError(code), require_stable=require_stable
        ),
    )


# --- authorization -------------------------------------------------------------------------------


def _may_describe(
    context: GroupContext, wanted: OffsetFetchRequestTopics | OffsetFetchResponseTopics
) -> bool:
    return allows_topic(context, Operation.DESCRIBE, name=wanted.name, topic_id=wanted.topic_id)


def _visible(context: GroupContext, answer: OffsetFetchResponseGroup) -> OffsetFetchResponseGroup:
    """A request for all topics gets those that the client may describe."""
    answer.topics = [one for one in answer.topics if _may_describe(context, one)]
    return answer


def _with_refused(
    answer: OffsetFetchResponseGroup, refused: list[OffsetFetchResponseTopics]
) -> OffsetFetchResponseGroup:
    answer.topics = answer.topics + refused
    return answer


# --- the form before version 8 -------------------------------------------------------------------


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=one.name, partition_indexes=one.partition_indexes)
            for one in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _with_groups(groups: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
    return OffsetFetchResponse(groups=groups)


def _without_groups(groups: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
    (answer,) = groups
    return OffsetFetchResponse(
        error_code=answer.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=one.name, partitions=[_old_partition(entry) for entry in one.partitions]
            )
            for one in answer.topics
        ],
    )


def _old_partition(entry: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=entry.partition_index,
        committed_offset=entry.committed_offset,
        committed_leader_epoch=entry.committed_leader_epoch,
        metadata=entry.metadata,
        error_code=entry.error_code,
    )


# --- refusals ------------------------------------------------------------------------------------


def _refuse(request: OffsetFetchRequest, error: KafkaError) -> OffsetFetchResponse:
    if request.groups:
        return _with_groups([_error_of(one, error.code) for one in request.groups])
    wanted = _as_group(request)
    answer = _error_of(wanted, error.code)
    # Version 1 has no error for the whole request.
    answer.topics = [_refuse_topic(one, error.code) for one in wanted.topics or ()]
    return _without_groups([answer])


def _refuse_group(
    context: GroupContext,
    wanted: OffsetFetchRequestGroup,
    error: KafkaError,
    *,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    """An error for the group, or for each partition that is named."""
    code = error.code
    if require_stable and context.peer.is_librdkafka and code in _NOT_READY:
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    if wanted.topics and (code is not error.code or context.version < FIRST_WITH_ERROR):
        refused = [_refuse_topic(one, code) for one in wanted.topics]
        return OffsetFetchResponseGroup(group_id=wanted.group_id, topics=refused)
    return _error_of(wanted, error.code)


def _error_of(wanted: OffsetFetchRequestGroup, code: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=wanted.group_id, error_code=int(code))


def _refuse_topic(wanted: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=wanted.name,
        topic_id=wanted.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=NO_OFFSET, error_code=int(code)
            )
            for index in wanted.partition_indexes
        ],
    )


HANDLER = Handler(api_key=ApiKey.OFFSET_FETCH, versions=(1, 10), handle=handle, refuse=_refuse)
