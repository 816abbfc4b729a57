"""A partition as Metadata and DescribeTopicPartitions describe it: the fields that both have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidemill.core.errors import ErrorCode
from tidemill.core.ids import NO_LEADER
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.server.request.context import ClusterContext

__all__ = ["describe_partition"]

Row = TypeVar("Row")


def describe_partition(
    context: ClusterContext, make_row: Callable[..., Row], index: int, image: PartitionImage
) -> Row:
    """The row of partition `index`.

    A broker without a lease may have a successor, so it does not send clients back to itself.
    """
    cluster, alive = context.services.cluster, context.image.brokers
    is_own = image.leader == cluster.broker_id
    leader = NO_LEADER if is_own and not cluster.may_act else image.leader
    return make_row(
        error_code=0 if leader >= 0 else int(ErrorCode.LEADER_NOT_AVAILABLE),
        partition_index=index,
        leader_id=leader,
        leader_epoch=image.leader_epoch,
        replica_nodes=list(image.replicas),
        isr_nodes=list(image.isr),
        offline_replicas=[broker for broker in image.replicas if broker not in alive],
    )
