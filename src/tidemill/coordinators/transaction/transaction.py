"""What the log knows of one transactional id: a value, and the values that may follow it.

A producer epoch belongs to one instance of the producer (TV1), or to one transaction (TV2: KIP-890,
every end raises it). The coordinator itself raises it when it aborts: whoever comes later with the
older epoch is refused everywhere (I19, I22).

The last epoch that a producer is given is one below what the field can hold, as in Kafka. That
leaves one for the markers of its last transaction. After that the id is exhausted: the producer
gets another id, and `previous_producer_id` recognises a client that repeats its request because it
missed the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.coordinators.transaction.states import TransactionStatus, may_become
from tidemill.core.errors import invariant
from tidemill.core.ids import TopicPartition

__all__ = ["EPOCH_MAX", "LAST_GIVEN_EPOCH", "NO_EPOCH", "NO_ID", "Transaction"]

NO_ID = -1
NO_EPOCH = -1
EPOCH_MAX = 2**15 - 1
"""What the field can hold."""
LAST_GIVEN_EPOCH = EPOCH_MAX - 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id and its newest transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    """Those that get a marker; empty unless a transaction is open or prepared."""
    start_ms: int = -1
    """Wall time of the first addition."""
    update_ms: int = -1
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    """For when the transaction is complete, because this id is exhausted."""
    version: int = 0
    """Of transactions (TV), as the client ends them: 0 or 2."""

    @property
    def producer(self) -> ProducerName:
        return ProducerName(self.producer_id, self.epoch)

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer cannot be given another epoch of its id."""
        return self.epoch >= LAST_GIVEN_EPOCH

    @property
    def raised_epoch(self) -> int:
        """The next epoch; no producer was given the last one, so it may be used again."""
        return min(self.epoch + 1, EPOCH_MAX)

    @property
    def due_ms(self) -> int:
        """Wall time at which the open transaction has taken too long."""
        return self.start_ms + self.timeout_ms

    # --- what may follow -------------------------------------------------------------------------

    def begun_again(self, producer: ProducerName, *, timeout_ms: int, now_ms: int) -> Transaction:
        """A producer asks for an id and gets `producer`."""
        is_same = producer.producer_id == self.producer_id
        return self._moved(
            TransactionStatus.EMPTY,
            now_ms,
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            previous_producer_id=self.previous_producer_id if is_same else self.producer_id,
            timeout_ms=timeout_ms,
            start_ms=-1,
        )

    def with_partitions(
        self, added: Iterable[TopicPartition], *, version: int, now_ms: int
    ) -> Transaction:
        is_open = self.status is TransactionStatus.ONGOING
        return self._moved(
            TransactionStatus.ONGOING,
            now_ms,
            partitions=self.partitions.union(added),
            start_ms=self.start_ms if is_open else now_ms,
            version=version,
        )

    def decided(
        self, *, is_commit: bool, version: int, epoch: int, next_producer_id: int, now_ms: int
    ) -> Transaction:
        """The outcome is decided; its markers carry `epoch`."""
        decided = TransactionStatus.PREPARE_COMMIT if is_commit else TransactionStatus.PREPARE_ABORT
        return self._moved(
            decided, now_ms, epoch=epoch, next_producer_id=next_producer_id, version=version
        )

    def completed(self, *, now_ms: int) -> Transaction:
        """Every marker is acknowledged; an exhausted id gives way to the next one."""
        is_commit = self.status is TransactionStatus.PREPARE_COMMIT
        after = TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT
        return self._ended(after, self.producer, self.next_producer_id, now_ms)

    def aborted_empty(self, *, epoch: int, next_producer_id: int, now_ms: int) -> Transaction:
        """A transaction without a partition is aborted (TV2): there are no markers to write."""
        producer = ProducerName(self.producer_id, epoch)
        ended = self._ended(TransactionStatus.COMPLETE_ABORT, producer, next_producer_id, now_ms)
        return replace(ended, version=2)

    def _ended(
        self, after: TransactionStatus, producer: ProducerName, next_id: int, now_ms: int
    ) -> Transaction:
        if next_id == NO_ID:
            return self._moved(after, now_ms, partitions=frozenset(), epoch=producer.epoch)
        return self._moved(
            after,
            now_ms,
            partitions=frozenset(),
            producer_id=next_id,
            epoch=0,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_ID,
        )

    def _moved(self, after: TransactionStatus, now_ms: int, **changed: object) -> Transaction:
        invariant(may_become(self.status, after), f"{self.status.shown} to {after.shown}")
        return replace(self, status=after, update_ms=now_ms, **changed)  # type: ignore[arg-type]  # by name
