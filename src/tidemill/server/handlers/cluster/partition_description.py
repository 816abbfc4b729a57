"""A partition as Metadata and DescribeTopicPartitions describe it: the fields that both have."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TypeVar

from tidemill.core.errors import ErrorCode
from tidemill.metadata.image.metadata_image import PartitionImage

__all__ = ["describe_partition"]

Row = TypeVar("Row")


def describe_partition(
    make_row: Callable[..., Row], index: int, image: PartitionImage, alive: Container[int]
) -> Row:
    """The row of partition `index`; `alive` are the brokers that are registered now."""
    return make_row(
        error_code=0 if image.leader >= 0 else int(ErrorCode.LEADER_NOT_AVAILABLE),
        partition_index=index,
        leader_id=image.leader,
        leader_epoch=image.leader_epoch,
        replica_nodes=list(image.replicas),
        isr_nodes=list(image.isr),
        offline_replicas=[broker for broker in image.replicas if broker not in alive],
    )
