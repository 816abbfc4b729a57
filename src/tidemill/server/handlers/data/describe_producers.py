"""DescribeProducers (61), version 0: the idempotent producers that a partition remembers.

It helps to find transactions that hang. The leader answers with each producer's epoch, its last
sequence, the time of its last write, the coordinator epoch of its last marker, and where its open
transaction began.

Nobody produces to a view, so it has none. Its base's would look like transactions that hang:
no coordinator knows of one in the view.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.loop.pacing import Pacer
from tidemill.replication.partition import Partition
from tidemill.server.request.authorizer import Operation
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.partition_access import count_refusal, find_led_partition
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

__all__ = ["HANDLER"]

PARTITIONS_PER_SLICE = 1
"""A partition may remember ten thousand producers, so each one is a slice of its own (S11)."""
PRODUCERS_PER_ANSWER_MAX = 100_000
"""About 30 MB while the answer is built."""


def handle(context: DataContext, request: DescribeProducersRequest) -> Answer:
    return _describe(context, request)


async def _describe(
    context: DataContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    response = DescribeProducersResponse()
    pacer = Pacer(PARTITIONS_PER_SLICE)
    producers_left = PRODUCERS_PER_ANSWER_MAX
    for wanted in request.topics:
        answered = TopicResponse(name=wanted.name)
        response.topics.append(answered)
        for index in wanted.partition_indexes:
            await pacer.step()
            entry = _describe_one(context, wanted.name, index, producers_left)
            producers_left -= len(entry.active_producers)
            answered.partitions.append(entry)
    return response


def _describe_one(
    context: DataContext, name: str, index: int, producers_left: int
) -> PartitionResponse:
    entry = PartitionResponse(partition_index=index)
    try:
        partition = find_led_partition(context, Operation.READ, name, index)
        if partition.name.topic != name:
            return entry  # of a view
        if len(partition.log.producers) > producers_left:
            detail = "too much for one answer; ask for less at once"
            raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
        entry.active_producers = _active_producers(partition)
    except (KafkaError, StorageFault) as error:
        entry.error_code = count_refusal(context, error)
        entry.error_message = str(error)
    return entry


def _active_producers(partition: Partition) -> list[ProducerState]:
    return [
        ProducerState(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_append_ms,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_start_offset=producer.txn_first_offset,
        )
        for producer in partition.log.producers.active()
    ]


def _refuse(request: DescribeProducersRequest, error: KafkaError) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=wanted.name,
                partitions=[
                    PartitionResponse(partition_index=index, error_code=int(error.code))
                    for index in wanted.partition_indexes
                ],
            )
            for wanted in request.topics
        ]
    )


HANDLER = Handler(api_key=ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), handle=handle, refuse=_refuse)
