"""AlterPartitionReassignments (45), versions 0..1: move replicas; done by the controller.

v1 says whether the number of replicas may change.

A partition is named with its next replicas, the preferred leader first, or without any: then its
reassignment is taken back. The answer comes when the move has begun; ListPartitionReassignments
says what is still on its way.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.pacing import Pacer
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

__all__ = ["HANDLER"]

PARTITIONS_PER_SLICE = 1_000
"""Partitions named or answered in one slice of the loop: about a millisecond (S11)."""

Targets = dict[TopicPartition, Sequence[int] | None]


def handle(context: ClusterContext, request: AlterPartitionReassignmentsRequest) -> Answer:
    context.require(Operation.ALTER, cluster())
    return _alter(context, request)


async def _alter(
    context: ClusterContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    pacer = Pacer(PARTITIONS_PER_SLICE)
    targets: Targets = {}
    refused: dict[TopicPartition, KafkaError | None] = {}
    for topic in request.topics:
        for one in topic.partitions:
            await pacer.step()
            name = TopicPartition(topic.name, one.partition_index)
            try:
                if name in targets or name in refused:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "names a partition twice")
                _check_count(context, request, name, one.replicas)
                targets[name] = one.replicas
            except KafkaError as error:
                targets.pop(name, None)
                refused[name] = error
    try:
        outcomes = await context.services.cluster.reassign(targets)
    except KafkaError as error:
        return _refusal(error)
    except StoreUnavailable as error:
        return _refusal(KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)))
    refused.update(zip(targets, outcomes, strict=True))
    return await _response(refused)


def _check_count(
    context: ClusterContext,
    request: AlterPartitionReassignmentsRequest,
    name: TopicPartition,
    replicas: Sequence[int] | None,
) -> None:
    now = context.image.own_partition(*name)
    if request.allow_replication_factor_change or now is None or replicas is None:
        return
    if len(replicas) != len(now.replicas) - len(now.adding):
        detail = f"{len(replicas)} replicas are another number than now, which was not allowed"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, detail)


async def _response(
    refused: dict[TopicPartition, KafkaError | None],
) -> AlterPartitionReassignmentsResponse:
    pacer = Pacer(PARTITIONS_PER_SLICE)
    topics: dict[str, ReassignableTopicResponse] = {}
    for (name, index), error in refused.items():
        await pacer.step()
        topic = topics.setdefault(name, ReassignableTopicResponse(name=name))
        topic.partitions.append(
            ReassignablePartitionResponse(
                partition_index=index,
                error_code=int(ErrorCode.NONE if error is None else error.code),
                error_message=None if error is None else error.detail or None,
            )
        )
    return AlterPartitionReassignmentsResponse(error_message=None, responses=list(topics.values()))


def _refusal(error: KafkaError) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        error_code=int(error.code), error_message=error.detail or None
    )


HANDLER = Handler(
    api_key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    handle=handle,
    refuse=refuse_with_error_code(AlterPartitionReassignmentsResponse),
    by_controller=True,
)
