"""Finds and refuses single partitions, for the requests that name partitions one by one."""

from __future__ import annotations

from typing import Final

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault, code_of
from tidemill.replication.partition import Partition
from tidemill.server.request.authorizer import Operation, topic
from tidemill.server.request.context import AnyContext, DataContext

__all__ = ["PARTITIONS_PER_SLICE", "count_refusal", "find_led_partition", "find_partition"]

_READING: Final = (Operation.READ, Operation.DESCRIBE)
PARTITIONS_PER_SLICE: Final = 250
"""Partitions that one request works on per turn of the loop (S11): about a millisecond."""


def find_partition(context: DataContext, operation: Operation, name: str, index: int) -> Partition:
    """A partition of this broker; KafkaError if it is not here, or the client may not do this.

    For a request that only reads, the partition of a view is that of its base.
    """
    if not context.allows(operation, topic(name)):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    partition = context.services.replicas.find(name, index)
    if partition is None:
        return _viewed_partition(context, operation, name, index)
    return partition


def _viewed_partition(
    context: DataContext, operation: Operation, name: str, index: int
) -> Partition:
    view = context.image.topic(name)
    if view is None or not view.is_view or operation not in _READING:
        raise context.missing_partition(name, index)
    partition = context.services.replicas.find(view.view_of, index)
    if partition is None:
        raise context.missing_partition(view.view_of, index)
    return partition


def find_led_partition(
    context: DataContext, operation: Operation, name: str, index: int
) -> Partition:
    """As `find_partition`; KafkaError also if this broker does not lead the partition."""
    partition = find_partition(context, operation, name, index)
    partition.check_leader()
    return partition


def count_refusal(context: AnyContext, error: KafkaError | StorageFault) -> int:
    """Count one partition's refusal as an error; its code for the answer."""
    code = code_of(error)
    context.services.telemetry.count_error(code)
    return int(code)
