"""DescribeTopicPartitions (75), version 0: topics and partitions, page by page (KIP-966).

Topics come in the order of their names, each name once; an empty list means all topics that the
client may describe. An answer has at most 2,000 partitions, or fewer if the client asks for fewer.
`next_cursor` says where the next one begins, and the client sends it back. A topic named by the
cursor may be gone by then: the answer goes on behind its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, is_legal_topic_name
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.server.handlers.cluster.partition_description import describe_partition
from tidemill.server.request.authorized_operations import authorized_operations
from tidemill.server.request.authorizer import Operation, topic
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    RequestCursor,
    ResponseCursor,
)

__all__ = ["HANDLER"]

PARTITIONS_MAX = 2_000
"""Partitions in one answer, as in Kafka."""
PARTITIONS_PER_SLICE = 500
"""Partitions described in one slice of the loop (S11); a topic counts as one more."""

_START = RequestCursor()


def handle(context: ClusterContext, request: DescribeTopicPartitionsRequest) -> Answer:
    cursor = request.cursor or _START
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a cursor's partition is 0 or more")
    asked = {wanted.name for wanted in request.topics}
    if asked and request.cursor is not None and cursor.topic_name not in asked:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the request does not name the cursor's topic")
    return _describe(context, request, cursor, asked)


async def _describe(
    context: ClusterContext,
    request: DescribeTopicPartitionsRequest,
    cursor: RequestCursor,
    asked: set[str],
) -> DescribeTopicPartitionsResponse:
    response = DescribeTopicPartitionsResponse()
    room = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    pacer = Pacer(PARTITIONS_PER_SLICE)
    for name in sorted(asked or context.image.topics):
        if name < cursor.topic_name:
            continue
        await pacer.step()
        if not context.allows(Operation.DESCRIBE, topic(name)):
            if asked:
                response.topics.append(_refusal(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        if room == 0:
            response.next_cursor = ResponseCursor(topic_name=name)
            break
        found = context.image.topic(name)
        if found is None:
            if asked:
                response.topics.append(_refusal(name, _why_missing(name)))
            continue
        start = cursor.partition_index if name == cursor.topic_name else 0
        indexes = range(start, len(found.partitions))[:room]
        await pacer.step(len(indexes))
        response.topics.append(_topic(context, found, indexes))
        room -= len(indexes)
        if indexes.stop < len(found.partitions):
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=indexes.stop)
            break
    return response


def _topic(
    context: ClusterContext, found: TopicImage, indexes: Iterable[int]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=found.name,
        topic_id=found.topic_id,
        is_internal=found.internal,
        partitions=[_partition(context, found, index) for index in indexes],
        topic_authorized_operations=authorized_operations(context, topic(found.name), True),
    )


def _partition(
    context: ClusterContext, found: TopicImage, index: int
) -> DescribeTopicPartitionsResponsePartition:
    row = describe_partition(context, DescribeTopicPartitionsResponsePartition, found, index)
    image = found.partitions[index]
    row.eligible_leader_replicas = list(image.elr)
    is_somebody_certain = bool(image.isr or image.elr)
    unsure = () if is_somebody_certain else image.suspects or (image.last_known_leader,)
    row.last_known_elr = [one for one in unsure if one != NO_LEADER]
    return row


def _why_missing(name: str) -> ErrorCode:
    if is_legal_topic_name(name):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_TOPIC_EXCEPTION


def _refusal(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=int(code))


def _refuse(
    request: DescribeTopicPartitionsRequest, error: KafkaError
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[_refusal(wanted.name, error.code) for wanted in request.topics]
    )


HANDLER = Handler(
    api_key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0), handle=handle, refuse=_refuse
)
