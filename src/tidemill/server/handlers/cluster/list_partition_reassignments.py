"""ListPartitionReassignments (46), version 0: partitions whose replicas are being moved.

As in Kafka, partitions that are not being moved are left out, whether the request names them or
not. Any broker answers, as far as it knows; one that has passed on a request that moves replicas
knows of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.metadata_image import MetadataImage, PartitionImage
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

__all__ = ["HANDLER"]

PARTITIONS_PER_SLICE = 5_000
"""Partitions looked at in one slice of the loop: about a millisecond (S11)."""


def handle(context: ClusterContext, request: ListPartitionReassignmentsRequest) -> Answer:
    context.require(Operation.DESCRIBE, cluster())
    return _list(context.image, request)


async def _list(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    pacer = Pacer(PARTITIONS_PER_SLICE)
    topics: dict[str, OngoingTopicReassignment] = {}
    for name, index in _wanted(image, request):
        await pacer.step()
        partition = image.own_partition(name, index)
        if partition is not None and partition.is_moving:
            topic = topics.setdefault(name, OngoingTopicReassignment(name=name))
            topic.partitions.append(_ongoing(index, partition))
    return ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))


def _wanted(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> Iterator[tuple[str, int]]:
    if request.topics is None:
        for name, topic in image.topics.items():
            for index in range(len(topic.own_partitions)):
                yield name, index
        return
    for wanted in request.topics:
        for index in dict.fromkeys(wanted.partition_indexes):
            yield wanted.name, index


def _ongoing(index: int, partition: PartitionImage) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=index,
        replicas=list(partition.replicas),
        adding_replicas=list(partition.adding),
        removing_replicas=list(partition.removing),
    )


HANDLER = Handler(
    api_key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    handle=handle,
    refuse=refuse_with_error_code(ListPartitionReassignmentsResponse),
)
