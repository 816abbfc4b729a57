"""Records gathered into batches per partition until they are sent. No clock: `now` is an argument.

A batch is open (takes records) until it is full or encoded for sending. A partition has at most one
open batch, the last of its queue. The head of a queue stays there while it is in flight, so the
batches of a partition reach the log in the order in which they were filled, retries included.

A batch gets its sequence numbers (T29) when it is first encoded, and the encoded bytes are kept: a
retry sends exactly the same batch, and so the broker recognises it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from tidemill.client.producing.producer_identity import (
    ANONYMOUS,
    ProducerIdentity,
    sequence_after,
)
from tidemill.core.ids import TopicPartition
from tidemill.wire.batch import NO_SEQUENCE
from tidemill.wire.records import Header, Record, build_batch

__all__ = ["Accumulator", "OutgoingBatch", "PartitionQueue"]

_RECORD_OVERHEAD_BYTES = 24
"""Upper bound of a record's lengths, deltas and attributes at usual sizes."""


@final
@dataclass(slots=True)
class OutgoingBatch:
    """One batch from its first record until its outcome is known."""

    done: asyncio.Future[int]
    """Its base offset; -1 if the broker does not report it (acks=0)."""
    opened_at: float
    deadline: float
    records: list[Record] = field(default_factory=list)
    size_bytes: int = 0
    """An upper bound, before compression."""
    payload: bytearray | None = None
    """The encoded batch; None before it is first sent."""
    times_sent: int = 0


@final
@dataclass(slots=True)
class PartitionQueue:
    """The batches of one partition, oldest first."""

    partition: TopicPartition
    batches: deque[OutgoingBatch] = field(default_factory=deque)
    in_flight: bool = False
    """Whether the head has been sent and not been answered."""
    not_before: float = 0.0
    """When the head may be sent again."""
    identity: ProducerIdentity = ANONYMOUS
    """The identity that `next_sequence` belongs to; a new identity starts at 0."""
    next_sequence: int = 0

    @property
    def is_repeated(self) -> bool:
        return self.batches[0].times_sent > 1

    def encode_head(self, identity: ProducerIdentity, codec: int) -> bytearray:
        """The bytes of the head batch; every call returns the same bytes."""
        batch = self.batches[0]
        if batch.payload is None:
            batch.payload = build_batch(
                batch.records,
                codec=codec,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=self._take_sequences(identity, len(batch.records)),
            )
        return batch.payload

    def _take_sequences(self, identity: ProducerIdentity, count: int) -> int:
        if not identity.idempotent:
            return NO_SEQUENCE
        if identity != self.identity:
            self.identity = identity
            self.next_sequence = 0
        base = self.next_sequence
        self.next_sequence = sequence_after(base, count)
        return base


@final
class Accumulator:
    """The queues of all partitions, and their total size."""

    def __init__(self, *, batch_bytes_max: int, linger_s: float, delivery_timeout_s: float) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._linger_s = linger_s
        self._delivery_timeout_s = delivery_timeout_s
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.buffered_bytes = 0

    def add(
        self, partition: TopicPartition, record: Record, now: float
    ) -> tuple[OutgoingBatch, int]:
        """Add a record to the partition's open batch; the batch and the record's index in it."""
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = PartitionQueue(partition)
        size = _size_bytes(record.key, record.value, record.headers)
        batch = queue.batches[-1] if queue.batches else None
        if batch is None or not self._takes(batch, size):
            batch = self._open(queue, now)
        batch.records.append(record)
        batch.size_bytes += size
        self.buffered_bytes += size
        return batch, len(batch.records) - 1

    def _takes(self, batch: OutgoingBatch, size: int) -> bool:
        return batch.payload is None and batch.size_bytes + size <= self._batch_bytes_max

    def _open(self, queue: PartitionQueue, now: float) -> OutgoingBatch:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        batch = OutgoingBatch(done, now, now + self._delivery_timeout_s)
        queue.batches.append(batch)
        return batch

    def ready_at(self, queue: PartitionQueue, *, flushing: bool) -> float | None:
        """When the head of a queue may be sent; None if there is none, or it is in flight."""
        if queue.in_flight or not queue.batches:
            return None
        head = queue.batches[0]
        full = len(queue.batches) > 1 or head.size_bytes >= self._batch_bytes_max
        lingers = not (flushing or full or head.payload is not None)
        return max(queue.not_before, head.opened_at + self._linger_s if lingers else 0.0)

    def pop_head(self, queue: PartitionQueue) -> OutgoingBatch:
        """Remove the head: its outcome is known."""
        batch = queue.batches.popleft()
        queue.in_flight = False
        queue.not_before = 0.0
        self.buffered_bytes -= batch.size_bytes
        return batch


def _size_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, data in headers:
        size += _RECORD_OVERHEAD_BYTES + len(name) + len(data or b"")
    return size
