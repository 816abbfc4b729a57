"""A partition as Metadata and DescribeTopicPartitions describe it: the fields that both have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidemill.core.errors import ErrorCode
from tidemill.core.ids import NO_LEADER
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.server.request.context import ClusterContext

__all__ = ["describe_partition"]

Row = TypeVar("Row")


def describe_partition(
    context: ClusterContext, make_row: Callable[..., Row], topic: TopicImage, index: int
) -> Row:
    """The row of partition `index` of a topic.

    A broker without a lease may have a successor, so it does not send clients back to itself where
    nobody vouches for it; nor to a leader that it has just lost.
    """
    services, alive = context.services, context.image.brokers
    image = topic.partitions[index]
    leader = image.leader
    if leader == services.cluster.broker_id:
        if not services.cluster.may_act and not _is_vouched(context, topic, index):
            leader = NO_LEADER
    elif services.lost_leaders.is_doubtful(leader, services.clock.monotonic()):
        leader = NO_LEADER
    return make_row(
        error_code=0 if leader >= 0 else int(ErrorCode.LEADER_NOT_AVAILABLE),
        partition_index=index,
        leader_id=leader,
        leader_epoch=image.leader_epoch,
        replica_nodes=list(image.replicas),
        isr_nodes=list(image.isr),
        offline_replicas=[broker for broker in image.replicas if broker not in alive],
    )


def _is_vouched(context: ClusterContext, topic: TopicImage, index: int) -> bool:
    own = context.services.replicas.find(topic.view_of or topic.name, index)
    return own is not None and own.is_vouched
