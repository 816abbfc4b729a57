"""The transactions of one partition of `__transaction_state`: a `Shard` (`runtime/shard.py`).

The life of a transaction: partitions are added, the producer ends it, and the decision, which is
PrepareCommit or PrepareAbort, is written. When that record is committed, the client is answered,
and the effect of the result has a marker written to every partition. Complete is written only when
every marker is acknowledged. So a coordinator that fails at any moment is followed by one that
finds the decision in the log and writes the markers again: to write one twice changes nothing, to
leave one out would hide or hold up committed records.

Deadlines abort transactions that take too long (I23). A sweep deletes ids that were not used for
`transactional.id.expiration.ms`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

from tidemill.coordinators.runtime.batch_sized_work import BatchSizedWork
from tidemill.coordinators.runtime.deadlines import Deadlines
from tidemill.coordinators.runtime.shard import Now, ProducerName, Result
from tidemill.coordinators.transaction import decisions
from tidemill.coordinators.transaction.decisions import Ending
from tidemill.coordinators.transaction.records import (
    transaction_record,
    transaction_tombstone,
    try_read_id,
    try_read_transaction,
)
from tidemill.coordinators.transaction.states import TransactionStatus
from tidemill.coordinators.transaction.transaction import NO_EPOCH, NO_ID, Transaction
from tidemill.core.config.transaction_config import TransactionConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import (
    OPEN_TRANSACTION_PARTITIONS_MAX,
    TRANSACTION_RECORD_BYTES_MAX,
)
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import Delta
from tidemill.wire.generated.end_txn import EndTxnResponse
from tidemill.wire.generated.init_producer_id import InitProducerIdResponse

__all__ = ["MarkersWanted", "TransactionLimit", "TransactionShard"]


class MarkersWanted(NamedTuple):
    """The effect of a decision: these partitions get a marker, then the transaction is complete."""

    transactional_id: str
    producer: ProducerName
    is_commit: bool
    partitions: frozenset[TopicPartition]
    version: int
    start_ms: int
    """Of the transaction: TV1 has many in one epoch."""


@final
class TransactionLimit:
    """Limits the ids and partitions that one broker coordinates, in all its shards together."""

    __slots__ = ("count", "ids_max", "partitions")

    def __init__(self, ids_max: int) -> None:
        self.ids_max = ids_max
        self.count = 0
        self.partitions = 0
        """Of all transactions that are not complete."""

    def check_more_partitions(self, count: int) -> None:
        """KafkaError if transactions would have too many together."""
        if self.partitions + count > OPEN_TRANSACTION_PARTITIONS_MAX:
            detail = (
                f"the transactions that this broker coordinates have {self.partitions} partitions"
            )
            raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)

    def check_one_more(self) -> None:
        """KafkaError if the limit is reached."""
        if self.count >= self.ids_max:
            detail = (
                f"this broker coordinates {self.ids_max} transactional ids "
                "(tidemill.transactional.ids.max)"
            )
            raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)


@final
class TransactionShard:
    """All transactional ids of one partition."""

    def __init__(self, config: TransactionConfig, limit: TransactionLimit | None = None) -> None:
        self._config = config
        self._limit = limit or TransactionLimit(config.transactional_ids_max)
        self._known: dict[str, Transaction] = {}
        """Hard state; bounded by the limit."""
        self._counts: Counter[TransactionStatus] = Counter()
        self._open: dict[str, int] = {}
        """When each transaction began that is not complete."""
        self._last_epochs: dict[str, tuple[ProducerName, int]] = {}
        """Of producers that went on after an error: who they are now, and their epoch before."""
        self._deadlines: Deadlines[str] = Deadlines()
        """When open transactions have taken too long."""
        self._unmarked: list[str] = []
        """Prepared transactions of a loaded log whose markers nobody is writing yet."""
        self._sweep_ms: int | None = None
        """When the next sweep for expired ids begins, or goes on."""
        self._to_sweep: list[str] = []

    def __len__(self) -> int:
        return len(self._known)

    # --- the Shard Protocol ----------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        transactional_id = try_read_id(key)
        if transactional_id is None:
            return
        after = None if value is None else try_read_transaction(transactional_id, value)
        before = self._known.pop(transactional_id, None)
        if before is not None:
            self._forget(before)
        if after is not None:
            self._know(after)
        else:
            self._last_epochs.pop(transactional_id, None)

    def _know(self, transaction: Transaction) -> None:
        self._known[transaction.transactional_id] = transaction
        self._limit.count += 1
        self._limit.partitions += len(transaction.partitions)
        self._counts[transaction.status] += 1
        if transaction.status.is_open:
            self._open[transaction.transactional_id] = transaction.start_ms

    def _forget(self, transaction: Transaction) -> None:
        self._limit.count -= 1
        self._limit.partitions -= len(transaction.partitions)
        self._counts[transaction.status] -= 1
        self._open.pop(transaction.transactional_id, None)

    def replay_pending(self, key: bytes, value: bytes | None, producer: ProducerName) -> None:
        """Nobody writes this topic in transactions."""

    def replay_marker(self, producer: ProducerName, *, is_commit: bool) -> None:
        """As above."""

    def loaded(self, now: Now) -> None:
        self._sweep_ms = now.monotonic_ms + self._config.transaction_remove_expired_interval_ms
        for transactional_id, found in self._known.items():
            if found.status.is_prepared:
                self._unmarked.append(transactional_id)
            elif found.status is TransactionStatus.ONGOING:
                left_ms = min(found.due_ms - now.wall_ms, found.timeout_ms)
                self._deadlines.set(transactional_id, now.monotonic_ms + max(0, left_ms))

    def next_deadline_ms(self) -> int | None:
        if self._unmarked:
            return 0
        timeout_ms, sweep_ms = self._deadlines.next_ms(), self._sweep_ms
        if timeout_ms is None or sweep_ms is None:
            return sweep_ms if timeout_ms is None else timeout_ms
        return min(timeout_ms, sweep_ms)

    def expire(self, now: Now) -> Result[None]:
        work = BatchSizedWork()
        self._hand_over_unmarked(work)
        self._abort_late(work, now)
        self._sweep(work, now)
        return work.result

    def metadata_changed(self, delta: Delta, now: Now) -> Result[None]:
        """The marker sender looks at the image itself."""
        return Result(None)

    def config_changed(self, config: TransactionConfig) -> None:
        self._config = config

    def resign(self) -> list[Deferred[Any]]:
        self._limit.count -= len(self._known)
        self._limit.partitions -= sum(len(self._known[name].partitions) for name in self._open)
        self._known.clear()
        self._counts.clear()
        self._open.clear()
        return []

    def _hand_over_unmarked(self, work: BatchSizedWork) -> None:
        while self._unmarked and not work.is_full:
            found = self._known.get(self._unmarked.pop())
            if found is not None and found.status.is_prepared:
                work.add(Result(None, effects=[_markers(found)]))

    def _abort_late(self, work: BatchSizedWork, now: Now) -> None:
        while not work.is_full:
            due = self._deadlines.take_due(now.monotonic_ms, 1)
            if not due:
                return
            found = self._known.get(due[0])
            if found is not None and found.status is TransactionStatus.ONGOING:
                fenced = decisions.fence(found, now_ms=now.wall_ms)
                effects = [_markers(fenced)]
                work.add(Result(None, [transaction_record(fenced)], effects=effects))

    def _sweep(self, work: BatchSizedWork, now: Now) -> None:
        """Delete expired ids, as many as fit into one batch."""
        if self._sweep_ms is None or self._sweep_ms > now.monotonic_ms:
            return
        if not self._to_sweep:
            self._to_sweep = list(self._known)
        used_until_ms = now.wall_ms - self._config.transactional_id_expiration_ms
        while self._to_sweep and not work.is_full:
            transactional_id = self._to_sweep.pop()
            expired = self._is_expired(transactional_id, used_until_ms)
            work.add(Result(None, [transaction_tombstone(transactional_id)] if expired else []))
        if not self._to_sweep:
            pause_ms = self._config.transaction_remove_expired_interval_ms
            self._sweep_ms = now.monotonic_ms + pause_ms

    def _is_expired(self, transactional_id: str, used_until_ms: int) -> bool:
        found = self._known.get(transactional_id)
        return found is not None and not found.status.is_open and found.update_ms <= used_until_ms

    # --- requests of producers -------------------------------------------------------------------

    def init_producer(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        resumed: ProducerName | None,
        fresh_id: Callable[[], int],
        now: Now,
    ) -> Result[InitProducerIdResponse]:
        """InitProducerId (T52); `fresh_id` gives a new producer id where one is needed."""
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        current = self._known.get(transactional_id)
        if current is None:
            self._limit.check_one_more()
            return self._begin_first(transactional_id, timeout_ms, fresh_id, now)
        after = decisions.begin_again(
            current,
            timeout_ms=timeout_ms,
            resumed=resumed,
            last_epoch=self._last_epoch(current),
            fresh_id=fresh_id,
            now_ms=now.wall_ms,
        )
        self._remember_last_epoch(current, after, resumed)
        if after.status.is_prepared:
            refusal = InitProducerIdResponse(
                error_code=int(ErrorCode.CONCURRENT_TRANSACTIONS), producer_epoch=NO_EPOCH
            )
            return Result(refusal, [transaction_record(after)], effects=[_markers(after)])
        return Result(_given(after), [] if after is current else [transaction_record(after)])

    def _begin_first(
        self, transactional_id: str, timeout_ms: int, fresh_id: Callable[[], int], now: Now
    ) -> Result[InitProducerIdResponse]:
        """The id is new; a producer that went on as another one has been forgotten meanwhile."""
        made = Transaction(
            transactional_id=transactional_id,
            producer_id=fresh_id(),
            epoch=0,
            timeout_ms=timeout_ms,
            update_ms=now.wall_ms,
        )
        return Result(_given(made), [transaction_record(made)])

    def _last_epoch(self, current: Transaction) -> int:
        holder, epoch = self._last_epochs.get(current.transactional_id, (None, NO_EPOCH))
        return epoch if holder == current.producer else NO_EPOCH

    def _remember_last_epoch(
        self, before: Transaction, after: Transaction, resumed: ProducerName | None
    ) -> None:
        """Only for a producer that went on: a new instance must not be taken for the old one."""
        transactional_id = before.transactional_id
        if resumed is None:
            self._last_epochs.pop(transactional_id, None)
        elif after is not before and after.producer_id == before.producer_id:
            self._last_epochs[transactional_id] = after.producer, before.epoch

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerName,
        partitions: Sequence[TopicPartition],
        *,
        version: int,
        now: Now,
    ) -> Result[ErrorCode]:
        """AddPartitionsToTxn and AddOffsetsToTxn: all partitions or none; `version` is the TV."""
        current = self._known.get(transactional_id)
        after = decisions.add_partitions(
            current, producer, partitions, version=version, now_ms=now.wall_ms
        )
        if after is current:
            return Result(ErrorCode.NONE)
        had = 0 if current is None else len(current.partitions)
        self._limit.check_more_partitions(len(after.partitions) - had)
        record = transaction_record(after)
        if len(record.value or b"") > TRANSACTION_RECORD_BYTES_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "the transaction names too many topics")
        if current is not None and current.status is not TransactionStatus.ONGOING:
            self._deadlines.set(transactional_id, now.monotonic_ms + after.timeout_ms)
        return Result(ErrorCode.NONE, [record])

    def check_partitions(
        self, transactional_id: str, producer: ProducerName, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """AddPartitionsToTxn with `verify_only`."""
        return decisions.check_partitions(self._known.get(transactional_id), producer, partitions)

    def end(
        self,
        transactional_id: str,
        ending: Ending,
        *,
        fresh_id: Callable[[], int],
        now: Now,
    ) -> Result[EndTxnResponse]:
        """EndTxn; answered when the decision is durable, before the markers (T54)."""
        current = self._known.get(transactional_id)
        after = decisions.end(current, ending, fresh_id=fresh_id, now_ms=now.wall_ms)
        answer = EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.epoch)
        if after.next_producer_id != NO_ID:
            answer = EndTxnResponse(producer_id=after.next_producer_id, producer_epoch=0)
        if after is current:
            return Result(answer)
        effects = [_markers(after)] if after.status.is_prepared else []
        return Result(answer, [transaction_record(after)], effects=effects)

    # --- the marker sender -----------------------------------------------------------------------

    def complete(self, wanted: MarkersWanted, *, now: Now) -> Result[None]:
        """Every marker of this decision is acknowledged."""
        current = self._known.get(wanted.transactional_id)
        if current is None or not current.status.is_prepared or _markers(current) != wanted:
            return Result(None)
        return Result(None, [transaction_record(current.completed(now_ms=now.wall_ms))])

    # --- administrators --------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction:
        found = self._known.get(transactional_id)
        if found is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return found

    def transactions(self) -> Iterator[Transaction]:
        return iter(self._known.values())

    def count_states(self) -> Counter[str]:
        """Transactional ids by state, as Kafka names it."""
        return Counter({status.shown: count for status, count in self._counts.items() if count})

    def oldest_start_ms(self) -> int | None:
        """When the oldest transaction began that is not complete; None if there is none."""
        return min(self._open.values(), default=None)


def _given(transaction: Transaction) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        producer_id=transaction.producer_id, producer_epoch=transaction.epoch
    )


def _markers(decided: Transaction) -> MarkersWanted:
    return MarkersWanted(
        decided.transactional_id,
        decided.producer,
        decided.status is TransactionStatus.PREPARE_COMMIT,
        decided.partitions,
        decided.version,
        decided.start_ms,
    )
