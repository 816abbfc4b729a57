"""AlterReplicaLogDirs (34), versions 1..2: move replicas to another directory; always refused.

v2 flexible.

A broker has one data directory, so there is nowhere to move a replica to: every other path gets
LOG_DIR_NOT_FOUND, as in Kafka for a path that is not configured. A replica that is asked to move to
the directory that it is in stays there, which succeeds.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.pacing import Pacer
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.partition_access import PARTITIONS_PER_SLICE
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

__all__ = ["HANDLER"]


def handle(context: ClusterContext, request: AlterReplicaLogDirsRequest) -> Answer:
    context.require(Operation.ALTER, cluster())
    return _answer_all(context, request)


async def _answer_all(
    context: ClusterContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    response = AlterReplicaLogDirsResponse()
    pacer = Pacer(PARTITIONS_PER_SLICE)
    for directory in request.dirs:
        for wanted in directory.topics:
            result = AlterReplicaLogDirTopicResult(topic_name=wanted.name)
            response.results.append(result)
            for index in wanted.partitions:
                await pacer.step()
                code = _outcome(context, directory.path, wanted.name, index)
                result.partitions.append(_row(index, code))
    return response


def _outcome(context: ClusterContext, path: str, name: str, index: int) -> ErrorCode:
    if path != context.services.config.static.data_dir:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if context.services.replicas.find(name, index) is None:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE


def _row(index: int, code: ErrorCode) -> AlterReplicaLogDirPartitionResult:
    return AlterReplicaLogDirPartitionResult(partition_index=index, error_code=int(code))


def _refuse(request: AlterReplicaLogDirsRequest, error: KafkaError) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=wanted.name,
                partitions=[_row(index, error.code) for index in wanted.partitions],
            )
            for directory in request.dirs
            for wanted in directory.topics
        ]
    )


HANDLER = Handler(
    api_key=ApiKey.ALTER_REPLICA_LOG_DIRS, versions=(1, 2), handle=handle, refuse=_refuse
)
