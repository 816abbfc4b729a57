"""DeleteRecords (21), versions 0..2: raise a partition's log start offset.

v1 as v0; v2 flexible.

Offset -1 stands for the high watermark. Records above it are not committed yet and cannot be
deleted: such an offset is refused with OFFSET_OUT_OF_RANGE (S45). An offset below the log start
changes nothing. The answer holds the log start offset. Topics that hold the broker's own state are
refused.

Left out: waiting until the followers have deleted too; their next fetch tells them.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.metadata_image import INTERNAL_TOPICS
from tidemill.server.request.authorizer import Operation
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.partition_access import (
    PARTITIONS_PER_SLICE,
    count_refusal,
    find_led_partition,
)
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

__all__ = ["HANDLER"]

TO_HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


def handle(context: DataContext, request: DeleteRecordsRequest) -> Answer:
    return _delete(context, request)


async def _delete(context: DataContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    pacer = Pacer(PARTITIONS_PER_SLICE)
    for wanted_topic in request.topics:
        answered = DeleteRecordsTopicResult(name=wanted_topic.name)
        response.topics.append(answered)
        for wanted in wanted_topic.partitions:
            await pacer.step()
            answered.partitions.append(_delete_before(context, wanted_topic.name, wanted))
    await _make_durable(context, response)
    return response


async def _make_durable(context: DataContext, response: DeleteRecordsResponse) -> None:
    """Records that were answered as deleted must not come back after a crash (I9)."""
    try:
        await context.services.checkpoint()
    except (KafkaError, StorageFault) as error:
        code = count_refusal(context, error)
        for answered in response.topics:
            for entry in answered.partitions:
                entry.error_code = entry.error_code or code


def _delete_before(
    context: DataContext, name: str, wanted: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    entry = DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=NO_LOW_WATERMARK
    )
    try:
        entry.low_watermark = _advance_start(context, name, wanted)
    except (KafkaError, StorageFault) as error:
        entry.error_code = count_refusal(context, error)
    return entry


def _advance_start(context: DataContext, name: str, wanted: DeleteRecordsPartition) -> int:
    partition = find_led_partition(context, Operation.DELETE, name, wanted.partition_index)
    if name in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    high_watermark = partition.high_watermark
    offset = high_watermark if wanted.offset == TO_HIGH_WATERMARK else wanted.offset
    if not 0 <= offset <= high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    floor = None if partition.holds is None else partition.holds.floor()
    if floor is not None and offset > floor:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"a record is held at offset {floor}")
    partition.log.advance_start(offset)
    return partition.log.log_start_offset


def _refuse(request: DeleteRecordsRequest, error: KafkaError) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=wanted.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=one.partition_index,
                        low_watermark=NO_LOW_WATERMARK,
                        error_code=int(error.code),
                    )
                    for one in wanted.partitions
                ],
            )
            for wanted in request.topics
        ]
    )


HANDLER = Handler(api_key=ApiKey.DELETE_RECORDS, versions=(0, 2), handle=handle, refuse=_refuse)
