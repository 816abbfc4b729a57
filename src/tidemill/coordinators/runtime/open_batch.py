"""The records that one turn of the loop brings to one partition of a coordinator: one batch.

HOT PATH: every offset commit runs through here, and most batches have one record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

from tidemill.coordinators.runtime.shard import CoordinatorRecord, ProducerName, Reply
from tidemill.core.limits import KIB
from tidemill.wire.batch import HEADER_BYTES
from tidemill.wire.records import Record, build_batch, build_pair_batch

__all__ = ["OpenBatch", "build_own_batch", "record_bytes"]

BATCH_BYTES_MAX: Final = 64 * KIB
"""Size of a shared batch. Sharing pays for many small records, not for a few large ones."""
RECORD_OVERHEAD_BYTES_MAX: Final = 32
"""Lengths and deltas around a key and a value."""


def record_bytes(records: Sequence[CoordinatorRecord]) -> int:
    """An upper bound for the bytes that the records take in a batch."""
    size = 0
    for key, value in records:
        size += RECORD_OVERHEAD_BYTES_MAX + len(key)
        if value is not None:
            size += len(value)
    return size


def build_own_batch(
    records: Sequence[CoordinatorRecord], producer: ProducerName | None, now_ms: int
) -> bytearray:
    """A batch of one operation alone; with a producer, of its open transaction."""
    if producer is None:
        return build_pair_batch(records, now_ms)
    return build_batch(
        [Record(value, key, timestamp=now_ms) for key, value in records],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transactional=True,
    )


@final
class OpenBatch:
    """Records that the shard has and the log has not, and the replies that depend on them."""

    __slots__ = ("_bytes_left", "_records", "effects", "now_ms", "replies")

    def __init__(self, message_bytes_max: int, now_ms: int) -> None:
        """`message_bytes_max`: the largest batch that the topic accepts."""
        self._bytes_left = min(BATCH_BYTES_MAX, message_bytes_max) - HEADER_BYTES
        self._records: list[CoordinatorRecord] = []
        self.now_ms = now_ms
        """The timestamp of all its records."""
        self.replies: list[Reply] = []
        """In the order of the requests."""
        self.effects: list[Any] = []

    def has_room(self, size_bytes: int) -> bool:
        return size_bytes <= self._bytes_left

    def add(self, records: Sequence[CoordinatorRecord], size_bytes: int) -> None:
        """Add all records of one operation; the caller has checked `has_room`."""
        self._bytes_left -= size_bytes
        self._records += records

    def build(self) -> bytearray:
        return build_pair_batch(self._records, self.now_ms)
