"""The partition under a shard as the runtime sees it, and what its refusals mean to clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidemill.coordinators.runtime.shard_loading import ReadablePartition
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.wire.produced_batch import BatchPolicy

__all__ = ["PartitionWriter", "Waiter", "append_all", "check_writable", "meaning_of"]

ACKS_ALL = -1

_MEANINGS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}


class Appended(Protocol):
    """Where a batch went."""

    next_offset: int


class Waiter(Protocol):
    """Somebody who waits for a mark."""

    def settle(self, code: ErrorCode) -> None: ...


class WriterSettings(Protocol):
    """What the topic's keys say of batches."""

    @property
    def policy(self) -> BatchPolicy: ...


class PartitionWriter(ReadablePartition, Protocol):
    """The partition under a shard."""

    leader_epoch: int

    @property
    def settings(self) -> WriterSettings: ...

    def check_writable(self, acks: int) -> None: ...

    def append(self, records: memoryview, *, acks: int, now_ms: int) -> Appended: ...

    def wait_acknowledged(
        self, next_offset: int, settle: Callable[[ErrorCode], None]
    ) -> Waiter: ...


def check_writable(partition: PartitionWriter) -> None:
    """KafkaError if `append_all` would be refused whatever the batch."""
    partition.check_writable(ACKS_ALL)


def append_all(partition: PartitionWriter, batch: bytearray, now_ms: int) -> int:
    """The offset behind the batch. KafkaError or StorageFault: nothing happened."""
    return partition.append(memoryview(batch), acks=ACKS_ALL, now_ms=now_ms).next_offset


def meaning_of(error: ErrorCode | Exception) -> ErrorCode:
    """What a log's refusal means to a client of the coordinator."""
    if isinstance(error, KafkaError):
        error = error.code
    elif isinstance(error, StorageFault):
        error = ErrorCode.KAFKA_STORAGE_ERROR
    elif isinstance(error, Exception):
        error = ErrorCode.UNKNOWN_SERVER_ERROR
    return _MEANINGS.get(error, error)
