"""OffsetForLeaderEpoch (23), versions 2..4: where an epoch ended, to detect lost records (T37).

v2 the client's own epoch is checked (T36); v3 the id of the replica that asks; v4 flexible.

Only the leader answers: with the largest epoch up to the one asked for, and the offset after its
last record. An epoch whose records were all deleted ended where the log begins; (-1, -1) for one
above the leader's own. A client takes (-1, -1) for lost records and resets its position.
"""

from __future__ import annotations

from tidemill.core.errors import KafkaError, StorageFault
from tidemill.core.loop.pacing import Pacer
from tidemill.server.request.authorizer import Operation
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.partition_access import (
    PARTITIONS_PER_SLICE,
    count_refusal,
    find_led_partition,
)
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

__all__ = ["HANDLER"]


def handle(context: DataContext, request: OffsetForLeaderEpochRequest) -> Answer:
    return _find_ends(context, request)


async def _find_ends(
    context: DataContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    response = OffsetForLeaderEpochResponse()
    pacer = Pacer(PARTITIONS_PER_SLICE)
    for wanted_topic in request.topics:
        answered = OffsetForLeaderTopicResult(topic=wanted_topic.topic)
        response.topics.append(answered)
        for wanted in wanted_topic.partitions:
            await pacer.step()
            answered.partitions.append(_find_end(context, wanted_topic.topic, wanted))
    return response


def _find_end(context: DataContext, name: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    entry = EpochEndOffset(partition=wanted.partition)
    try:
        partition = find_led_partition(context, Operation.DESCRIBE, name, wanted.partition)
        partition.check_epoch(wanted.current_leader_epoch)
        entry.leader_epoch, entry.end_offset = partition.end_offset_of_epoch(wanted.leader_epoch)
    except (KafkaError, StorageFault) as error:
        entry.error_code = count_refusal(context, error)
    return entry


def _refuse(
    request: OffsetForLeaderEpochRequest, error: KafkaError
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=wanted.topic,
                partitions=[
                    EpochEndOffset(partition=one.partition, error_code=int(error.code))
                    for one in wanted.partitions
                ],
            )
            for wanted in request.topics
        ]
    )


HANDLER = Handler(
    api_key=ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4), handle=handle, refuse=_refuse
)
