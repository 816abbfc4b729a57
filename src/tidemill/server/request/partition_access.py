"""What the requests that name partitions one by one have in common: finding each, refusing each."""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.replication.partition import Partition
from tidemill.server.request.authorizer import Operation, topic
from tidemill.server.request.context import AnyContext, DataContext

__all__ = ["PARTITIONS_PER_SLICE", "counted_code", "led_partition"]

PARTITIONS_PER_SLICE = 250
"""Partitions worked on before others get a turn (S11): about a millisecond."""


def led_partition(context: DataContext, operation: Operation, name: str, index: int) -> Partition:
    """The partition, if the asker may do this and this broker leads it; else KafkaError."""
    if not context.allows(operation, topic(name)):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    partition = context.services.replicas.find(name, index)
    if partition is None:
        raise context.missing_partition(name, index)
    partition.check_leader()
    return partition


def counted_code(context: AnyContext, error: KafkaError | StorageFault) -> int:
    """The code that one partition is refused with; counted as an error."""
    code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
    context.services.telemetry.count_error(code)
    return int(code)
