"""DeleteRecords (21), versions 0..2: raise a partition's log start offset.

v1 as v0; v2 flexible.

Offset -1 stands for the high watermark. Records above it are not committed yet and cannot be
deleted: such an offset is refused with OFFSET_OUT_OF_RANGE (S45). An offset below the log start
changes nothing. The answer holds the log start offset. Topics that hold the broker's own state are
refused, and so are those that are compacted only: there the newest record of a key stays for ever.

The answer waits until every in-sync replica has deleted the same, and would know after a crash:
whoever of them leads next, the records do not come back (I9). After the request's timeout it says
REQUEST_TIMED_OUT, as Kafka's does; the followers still delete when they can. Nobody waits for a
replica that is away. One that may be elected all the same is named in the log: it would bring the
records back.

A partition that a request names twice gets its first offset; the others are refused with
INVALID_REQUEST.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import final

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.metadata_image import INTERNAL_TOPICS
from tidemill.replication.partition import Partition
from tidemill.replication.waiting.waiters import AckWaiter
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

log = logging.getLogger(__name__)

TO_HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1
WAIT_S_MAX = 60.0
"""The longest wait that a client gets: what it has sent after that waits, too."""


def handle(context: DataContext, request: DeleteRecordsRequest) -> Answer:
    return _delete(context, request)


async def _delete(context: DataContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    deletion = _Deletion(context)
    pacer = Pacer(PARTITIONS_PER_SLICE)
    for wanted_topic in request.topics:
        answered = DeleteRecordsTopicResult(name=wanted_topic.name)
        response.topics.append(answered)
        for wanted in wanted_topic.partitions:
            await pacer.step()
            answered.partitions.append(deletion.begin(wanted_topic.name, wanted))
    try:
        # Records that were answered as deleted must not come back after a crash (I9).
        await context.services.checkpoint()
    except (KafkaError, StorageFault) as error:
        deletion.refuse(count_refusal(context, error))
    else:
        await deletion.wait(request.timeout_ms / 1000)
    return response


@final
class _Deletion:
    """The partitions of one request, and what they wait for."""

    def __init__(self, context: DataContext) -> None:
        self._context = context
        self._begun: dict[Partition, tuple[DeleteRecordsPartitionResult, AckWaiter]] = {}
        self._pending = 0
        """Counted while the request waits."""
        self._settled = asyncio.Event()

    def begin(self, name: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        """Delete here; followers hear of it."""
        context = self._context
        entry = DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=NO_LOW_WATERMARK
        )
        try:
            partition, offset = _find_start(context, name, wanted)
            if partition in self._begun:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "names a partition twice")
            settle = partial(self._settle, entry)
            waiter = partition.as_leader.delete_before(offset, settle)
            self._begun[partition] = entry, waiter
            entry.low_watermark = partition.log.log_start_offset
            self._name_absent(partition)
        except (KafkaError, StorageFault) as error:
            entry.error_code = count_refusal(context, error)
        return entry

    def _name_absent(self, partition: Partition) -> None:
        services, absent = self._context.services, partition.electable_absent()
        if absent and services.fault_log.allows("deletions", services.clock.monotonic()):
            log.warning(
                "%s: records below %d are deleted, but brokers %s have not heard of it: if one of "
                "them is elected before it returns, they are there again",
                partition.name,
                partition.log.log_start_offset,
                absent,
            )

    async def wait(self, timeout_s: float) -> None:
        """Until all in-sync replicas have deleted the same, or the time is up."""
        self._pending = sum(not waiter.settled for _, waiter in self._begun.values())
        if self._pending:
            wait_s = min(max(0.0, timeout_s), WAIT_S_MAX)
            timer = self._context.services.timers.add_after(wait_s, self._time_out)
            await self._settled.wait()
            timer.cancel()

    def refuse(self, code: int) -> None:
        """What was deleted here may come back: nothing is worth waiting for."""
        for entry, waiter in self._begun.values():
            entry.error_code = entry.error_code or code
            waiter.settle(ErrorCode(code))

    def _settle(self, entry: DeleteRecordsPartitionResult, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE and not entry.error_code:
            self._context.services.telemetry.count_error(code)
            entry.error_code = int(code)
        self._pending -= 1
        if not self._pending:
            self._settled.set()

    def _time_out(self) -> None:
        for _, waiter in self._begun.values():
            waiter.settle(ErrorCode.REQUEST_TIMED_OUT)


def _find_start(
    context: DataContext, name: str, wanted: DeleteRecordsPartition
) -> tuple[Partition, int]:
    """The partition, and where its log is to start."""
    partition = find_led_partition(context, Operation.DELETE, name, wanted.partition_index)
    if name in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if partition.log.config.compacts and not partition.log.config.deletes:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{name}: cleanup.policy is compact")
    high_watermark = partition.high_watermark
    offset = high_watermark if wanted.offset == TO_HIGH_WATERMARK else wanted.offset
    if not 0 <= offset <= high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    floor = None if partition.holds is None else partition.holds.floor()
    if floor is not None and offset > floor:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"a record is held at offset {floor}")
    return partition, offset


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
