"""ReplicaLogEnds (10002), version 0: where logs end whose partitions have no leader.

The controller asks before it elects a leader where no replica is certain to have everything. Each
partition is answered by itself, and only in the leader epoch that was asked about.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.metadata.rules.log_ends import LogEnd, LogEndQuestion
from tidemill.replication.log_ends import tell_log_ends
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.replica_log_ends import (
    ReplicaLogEndsRequest,
    ReplicaLogEndsResponse,
    ToldLogPartition,
    ToldLogTopic,
)

__all__ = ["HANDLER"]


def handle(context: ClusterContext, request: ReplicaLogEndsRequest) -> Answer:
    context.require_broker()
    if request.broker_id != context.services.cluster.broker_id:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"this is not broker {request.broker_id}")
    return _tell(context, request)


async def _tell(context: ClusterContext, request: ReplicaLogEndsRequest) -> ReplicaLogEndsResponse:
    asked = [
        LogEndQuestion(
            topic_id=topic.topic_id,
            partition=one.partition_index,
            leader_epoch=one.leader_epoch,
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
        )
        for topic in request.topics
        for one in topic.partitions
    ]
    services = context.services
    try:
        told = iter(await tell_log_ends(services.cluster, services.replicas, asked))
    except KafkaError as error:
        return ReplicaLogEndsResponse(error_code=int(error.code))
    except StoreUnavailable:
        return ReplicaLogEndsResponse(error_code=int(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    return ReplicaLogEndsResponse(
        topics=[
            ToldLogTopic(
                topic_id=topic.topic_id,
                partitions=[_entry(one.partition_index, next(told)) for one in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _entry(index: int, told: LogEnd | ErrorCode) -> ToldLogPartition:
    if isinstance(told, LogEnd):
        last_epoch, end_offset = told
        return ToldLogPartition(partition_index=index, last_epoch=last_epoch, end_offset=end_offset)
    return ToldLogPartition(partition_index=index, error_code=int(told))


HANDLER = Handler(
    api_key=ApiKey.REPLICA_LOG_ENDS,
    versions=(0, 0),
    handle=handle,
    refuse=refuse_with_error_code(ReplicaLogEndsResponse),
    is_internal=True,
)
