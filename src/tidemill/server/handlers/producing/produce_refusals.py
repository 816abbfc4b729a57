"""What a Produce request is answered with for the partitions that refuse it."""

from __future__ import annotations

import logging
from typing import Final

from tidemill.core.errors import DiskReserved, ErrorCode, KafkaError, StorageFault
from tidemill.core.logs import shown
from tidemill.server.request.context import DataContext
from tidemill.server.request.leader_hints import leader_endpoints, try_leader_hint
from tidemill.wire.generated.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidemill.wire.produced_batch import InvalidRecords

__all__ = ["add_endpoints", "refuse", "refuse_all"]

log = logging.getLogger(__name__)

FIRST_WITH_LEADER_HINTS: Final = 10
NO_OFFSET: Final = -1


def refuse(
    context: DataContext,
    entry: PartitionProduceResponse,
    name: str | None,
    error: KafkaError | StorageFault,
) -> None:
    """Fill the entry of a partition whose batch was not appended, or is not acknowledged."""
    if isinstance(error, StorageFault):
        services = context.services
        is_news = not isinstance(error, DiskReserved)
        if is_news and services.fault_log.allows("produce", services.clock.monotonic()):
            log.error("producers are refused: %s", shown(error))
        error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    context.services.telemetry.count_error(error.code)
    entry.error_code = int(error.code)
    entry.error_message = error.detail or None
    entry.base_offset = NO_OFFSET
    entry.log_append_time_ms = entry.log_start_offset = NO_OFFSET
    if isinstance(error, InvalidRecords):
        entry.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
            for index, why in error.record_errors
        ]
    hinted = error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if hinted and name is not None and context.version >= FIRST_WITH_LEADER_HINTS:
        entry.current_leader = try_leader_hint(
            context, name, entry.index, LeaderIdAndEpoch, code=entry.error_code
        )


def add_endpoints(context: DataContext, response: ProduceResponse) -> None:
    """The addresses of the leaders that the answer names (T28)."""
    if context.version < FIRST_WITH_LEADER_HINTS:
        return
    hints = [e.current_leader for t in response.responses for e in t.partition_responses]
    response.node_endpoints = leader_endpoints(context, hints, NodeEndpoint)


def refuse_all(request: ProduceRequest, error: KafkaError) -> ProduceResponse:
    """Refuse every partition of the request."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=data.name,
                topic_id=data.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=p.index, error_code=int(error.code), base_offset=NO_OFFSET
                    )
                    for p in data.partition_data
                ],
            )
            for data in request.topic_data
        ]
    )
