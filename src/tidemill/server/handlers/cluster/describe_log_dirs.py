"""DescribeLogDirs (35), versions 1..5: the logs in this broker's data directory and their sizes.

v2 flexible; v3 an error for the whole request; v4 total and usable bytes; v5 cordoned directories.

Fields of our own tell where a log ends, and of a cut that a replica refuses, for `tidemill cluster
repair`.

A broker has one directory. The lag of a replica is its distance to the high watermark. A null list
of topics means all; partitions that are not on this broker are omitted.

Left out: moving replicas between directories, so there are no future replicas and no cordoned
directories.
"""

from __future__ import annotations

from functools import partial

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.loop.pacing import Pacer
from tidemill.replication.partition import Partition
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.server.request.partition_access import PARTITIONS_PER_SLICE, count_refusal
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

__all__ = ["HANDLER"]


def handle(context: ClusterContext, request: DescribeLogDirsRequest) -> Answer:
    if not context.allows(Operation.DESCRIBE, cluster()):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return _describe(context, request)


async def _describe(
    context: ClusterContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    services = context.services
    result = DescribeLogDirsResult(log_dir=services.config.static.data_dir)
    try:
        space = await services.disk.run(
            partial(services.disk.space, services.config.static.data_dir)
        )
    except StorageFault as fault:
        result.error_code = count_refusal(context, fault)
    else:
        result.total_bytes, result.usable_bytes = space.total_bytes, space.usable_bytes
        await _describe_partitions(context, request, result)
    return DescribeLogDirsResponse(results=[result])


async def _describe_partitions(
    context: ClusterContext, request: DescribeLogDirsRequest, result: DescribeLogDirsResult
) -> None:
    topics: dict[str, DescribeLogDirsTopic] = {}
    pacer = Pacer(PARTITIONS_PER_SLICE)
    for partition in _wanted(context, request):
        await pacer.step()
        name = partition.name.topic
        described = topics.get(name)
        if described is None:
            described = topics[name] = DescribeLogDirsTopic(name=name)
        described.partitions.append(_partition(partition))
        if partition.offline:
            result.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
    # As in Kafka, a failed directory reports only its error.
    result.topics = [] if result.error_code else [topics[name] for name in sorted(topics)]


def _wanted(context: ClusterContext, request: DescribeLogDirsRequest) -> list[Partition]:
    replicas = context.services.replicas
    if request.topics is None:
        return list(replicas)
    names = dict.fromkeys(
        (wanted.topic, index) for wanted in request.topics for index in wanted.partitions
    )
    found = (replicas.find(*name) for name in names)
    return [partition for partition in found if partition is not None]


def _partition(partition: Partition) -> DescribeLogDirsPartition:
    log = partition.log
    described = DescribeLogDirsPartition(
        partition_index=partition.name.partition,
        partition_size=log.size_bytes,
        offset_lag=max(0, partition.high_watermark - log.log_end_offset),
        log_end_offset=log.log_end_offset,
    )
    refused = partition.as_follower.refused_cut
    if refused is not None and not partition.is_leader:
        described.refused_cut_offset = refused.offset
        described.committed_offset = refused.committed_offset
        described.refused_in_epoch = refused.leader_epoch
    return described


HANDLER = Handler(
    api_key=ApiKey.DESCRIBE_LOG_DIRS,
    versions=(1, 5),
    handle=handle,
    refuse=refuse_with_error_code(DescribeLogDirsResponse),
)
