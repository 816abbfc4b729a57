"""HOT PATH. What a log knows about one producer; looked at and changed once per produced batch."""

from __future__ import annotations

from typing import Final, NamedTuple, final

from tidemill.wire.batch import NO_SEQUENCE

__all__ = [
    "NO_OFFSET",
    "ActiveProducer",
    "ProducerEntry",
    "RememberedBatch",
    "sequence_after",
]

NO_OFFSET: Final = -1
_NO_COORDINATOR: Final = -1
_SEQUENCE_MAX: Final = 2**31 - 1

RememberedBatch = tuple[int, int, int, int, int]
"""Base and last sequence, base and last offset, greatest timestamp."""


def sequence_after(last_sequence: int) -> int:
    """Sequences wrap around to 0."""
    return last_sequence + 1 if last_sequence != _SEQUENCE_MAX else 0


class ActiveProducer(NamedTuple):
    """What a log knows about one producer, for inspection."""

    producer_id: int
    epoch: int
    last_sequence: int
    """-1 before its first batch of this epoch."""
    last_append_ms: int
    coordinator_epoch: int
    """-1 before its first transaction marker."""
    txn_first_offset: int
    """-1 if no transaction is open."""


@final
class ProducerEntry:
    """One producer in one log. About 1.3 KB with five batches."""

    __slots__ = (
        "coordinator_epoch",
        "epoch",
        "generation",
        "last_append_ms",
        "marker_count",
        "marker_offset",
        "next_sequence",
        "txn_first_offset",
        "window",
    )

    def __init__(self, epoch: int, last_append_ms: int, generation: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        """The sequence with which the next batch of this epoch must begin."""
        self.window: list[RememberedBatch] = []
        """The last batches of this epoch, oldest first."""
        self.last_append_ms = last_append_ms
        self.txn_first_offset = NO_OFFSET
        """First offset of the open transaction; -1 if none is open."""
        self.marker_offset = NO_OFFSET
        """Of the last transaction marker; -1 if there was none."""
        self.coordinator_epoch = _NO_COORDINATOR
        """Of the coordinator that wrote that marker."""
        self.marker_count = 0
        """Markers that came since this entry exists, also those that changed nothing."""
        self.generation = generation
        """In an older one than its log's it is never changed again."""

    def copy(self, generation: int) -> ProducerEntry:
        copied = ProducerEntry(self.epoch, self.last_append_ms, generation)
        copied.next_sequence = self.next_sequence
        copied.window = list(self.window)
        copied.txn_first_offset = self.txn_first_offset
        copied.marker_offset = self.marker_offset
        copied.coordinator_epoch = self.coordinator_epoch
        copied.marker_count = self.marker_count
        return copied

    def begin_epoch(self, epoch: int) -> None:
        """A newer epoch: what the older ones sent is no longer repeated."""
        self.epoch = epoch
        self.next_sequence = 0
        self.window.clear()

    def described(self, producer_id: int) -> ActiveProducer:
        return ActiveProducer(
            producer_id,
            self.epoch,
            self.window[-1][1] if self.window else NO_SEQUENCE,
            self.last_append_ms,
            self.coordinator_epoch,
            self.txn_first_offset,
        )
