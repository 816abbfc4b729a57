"""The partition under a shard, as the runtime sees it, and the client errors for its refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.coordinators.runtime.shard_loading import ReadablePartition
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.wire.produced_batch import BatchPolicy

__all__ = [
    "ACKS_ALL",
    "AppendedBatch",
    "MarkedLog",
    "Marker",
    "PartitionWriter",
    "Waiter",
    "coordinator_error",
]

ACKS_ALL: Final = -1

_COORDINATOR_ERRORS: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}


class Marker(NamedTuple):
    """The end of a producer's transaction, for every partition of it."""

    producer: ProducerName
    is_commit: bool
    coordinator_epoch: int
    """The leader epoch of the coordinator's partition: tells an older coordinator from a newer."""
    is_bumped: bool = False
    """The epoch is the one after that of the transaction (TV2): a late copy of the marker cannot
    end the producer's next transaction."""


class AppendedBatch(Protocol):
    """Where a batch was appended; a duplicate was not, its original ends there or before."""

    next_offset: int
    duplicate: bool


class Waiter(Protocol):
    """A waiter for an acknowledgement: settled once, by the partition or by a timeout."""

    @property
    def settled(self) -> bool: ...

    def settle(self, code: ErrorCode) -> None: ...


class MarkedLog(Protocol):
    """The log of a partition that this broker leads or led, for markers."""

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        is_bumped: bool,
    ) -> AppendedBatch:
        """End the producer's transaction in this log, unless the marker is a duplicate.

        KafkaError if its epoch is an older one.
        """
        ...

    def wait_acknowledged(
        self, next_offset: int, settle: Callable[[ErrorCode], None]
    ) -> Waiter: ...


class OwnLog(MarkedLog, Protocol):
    """The log under a shard, for its records and for markers."""

    def append_own(self, batch: bytearray, *, now_ms: int) -> AppendedBatch: ...


class WriterSettings(Protocol):
    """The topic settings for batches."""

    @property
    def policy(self) -> BatchPolicy: ...


class PartitionWriter(ReadablePartition, Protocol):
    """The partition under a shard."""

    leader_epoch: int

    @property
    def settings(self) -> WriterSettings: ...

    @property
    def may_act(self) -> bool:
        """Whether no other broker acts as the leader here."""
        ...

    @property
    def is_silent(self) -> bool:
        """Whether this broker leads, and will act in a moment."""
        ...

    def check_writable(self, acks: int) -> None: ...

    @property
    def as_leader(self) -> OwnLog: ...


def coordinator_error(error: ErrorCode | Exception) -> ErrorCode:
    """The code that a coordinator's client gets when the log refuses with `error`."""
    if isinstance(error, KafkaError):
        error = error.code
    elif isinstance(error, StorageFault):
        error = ErrorCode.KAFKA_STORAGE_ERROR
    elif isinstance(error, Exception):
        error = ErrorCode.UNKNOWN_SERVER_ERROR
    return _COORDINATOR_ERRORS.get(error, error)
