"""What a request makes of a transactional id: the next `Transaction`, or a refusal.

Each function takes the id's transaction and returns the one that follows, which is the same object
if nothing is to be written. A refusal is a KafkaError. Two generations of clients are served side
by side: TV1, whose epochs belong to an instance of the producer, and TV2 (KIP-890), whose epochs
belong to one transaction each, so that a late request cannot touch the next one (I22).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.coordinators.transaction.states import TransactionStatus
from tidemill.coordinators.transaction.transaction import (
    LAST_GIVEN_EPOCH,
    NO_EPOCH,
    NO_ID,
    Transaction,
)
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import TRANSACTION_PARTITIONS_MAX

__all__ = [
    "EPOCH_PER_TRANSACTION",
    "Ending",
    "add_partitions",
    "begin_again",
    "check_partitions",
    "end",
    "fence",
]

EPOCH_PER_TRANSACTION = 2
"""The version of transactions from which every end raises the epoch (KIP-890)."""

_COMPLETE = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)


class Ending(NamedTuple):
    """What EndTxn asks for."""

    producer: ProducerName
    is_commit: bool
    version: int
    """Of transactions: 2 from version 5 of the request on, else 0."""


# --- a producer asks for an id -------------------------------------------------------------------


def begin_again(
    current: Transaction,
    *,
    timeout_ms: int,
    resumed: ProducerName | None,
    last_epoch: int,
    fresh_id: Callable[[], int],
    now_ms: int,
) -> Transaction:
    """A producer begins, or goes on after an error as `resumed` (KIP-360).

    `last_epoch` is the one that the id had before the present one, if the same producer went on.
    The result is Ongoing no longer, but may be prepared: the producer has to ask again then.
    """
    if resumed is not None:
        _check_resumed(current, resumed, last_epoch)
    if current.status.is_prepared:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "its last transaction is being ended")
    is_repeated = resumed is not None and _is_repeated(current, resumed, last_epoch)
    if current.status is TransactionStatus.ONGOING:
        if is_repeated:  # a late copy: the producer has its answer, or it would not have begun
            raise KafkaError(ErrorCode.PRODUCER_FENCED, "the producer has a newer epoch")
        return fence(current, now_ms=now_ms)
    if is_repeated and current.epoch <= LAST_GIVEN_EPOCH:
        return current
    producer = ProducerName(current.producer_id, current.epoch + 1)
    if current.is_exhausted:
        producer = ProducerName(fresh_id(), 0)
    begun = current.begun_again(producer, timeout_ms=timeout_ms, now_ms=now_ms)
    if resumed is None:  # the holder of the former id is another instance: it gets nothing
        return replace(begun, previous_producer_id=NO_ID)
    return begun


def _check_resumed(current: Transaction, resumed: ProducerName, last_epoch: int) -> None:
    """KafkaError PRODUCER_FENCED unless the producer has the newest epoch, or had it until now."""
    if resumed == current.producer or _is_repeated(current, resumed, last_epoch):
        return
    _check_not_next(current, resumed.producer_id)
    raise KafkaError(ErrorCode.PRODUCER_FENCED, "another producer uses the transactional id")


def _is_repeated(current: Transaction, resumed: ProducerName, last_epoch: int) -> bool:
    """Whether the producer was given its next epoch already and missed the answer."""
    if resumed.producer_id == current.producer_id:
        return resumed.epoch == last_epoch != NO_EPOCH
    is_previous = resumed.producer_id == current.previous_producer_id
    return is_previous and resumed.epoch >= LAST_GIVEN_EPOCH and current.epoch == 0


def fence(current: Transaction, *, now_ms: int) -> Transaction:
    """Abort the open transaction with an epoch that its producer does not have."""
    return current.decided(
        is_commit=False,
        version=current.version,
        epoch=current.raised_epoch,
        next_producer_id=NO_ID,
        now_ms=now_ms,
    )


# --- partitions ----------------------------------------------------------------------------------


def check_partitions(
    current: Transaction | None, producer: ProducerName, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Whether each partition belongs to the producer's open transaction."""
    found = _check_producer(current, producer)
    is_open = found.status is TransactionStatus.ONGOING
    return {
        one: ErrorCode.NONE
        if is_open and one in found.partitions
        else ErrorCode.TRANSACTION_ABORTABLE
        for one in partitions
    }


def add_partitions(
    current: Transaction | None,
    producer: ProducerName,
    partitions: Sequence[TopicPartition],
    *,
    version: int,
    now_ms: int,
) -> Transaction:
    """The transaction with these partitions; the first ones begin it."""
    found = _check_producer(current, producer)
    if found.status is TransactionStatus.ONGOING and found.partitions.issuperset(partitions):
        return found
    after = found.with_partitions(partitions, version=version, now_ms=now_ms)
    if len(after.partitions) > TRANSACTION_PARTITIONS_MAX:
        detail = f"a transaction has at most {TRANSACTION_PARTITIONS_MAX} partitions"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)
    return after


def _check_producer(current: Transaction | None, producer: ProducerName) -> Transaction:
    """The transaction of this producer, if it may add to it now; else KafkaError."""
    found = _known(current, producer.producer_id)
    if producer.epoch != found.epoch or producer.epoch > LAST_GIVEN_EPOCH:
        raise _fenced(found)
    if found.status.is_prepared:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "its last transaction is being ended")
    return found


# --- the end -------------------------------------------------------------------------------------


def end(
    current: Transaction | None, ending: Ending, *, fresh_id: Callable[[], int], now_ms: int
) -> Transaction:
    """The decided transaction; the same one if this outcome was decided before (T54)."""
    if ending.version >= EPOCH_PER_TRANSACTION:
        return _end_raising(current, ending, fresh_id=fresh_id, now_ms=now_ms)
    found = _known(current, ending.producer.producer_id)
    if ending.producer.epoch != found.epoch:
        raise _fenced(found)
    if found.status is TransactionStatus.ONGOING:
        return found.decided(
            is_commit=ending.is_commit,
            version=ending.version,
            epoch=found.epoch,
            next_producer_id=NO_ID,
            now_ms=now_ms,
        )
    return _repeated(found, ending)


def _end_raising(
    current: Transaction | None, ending: Ending, *, fresh_id: Callable[[], int], now_ms: int
) -> Transaction:
    """TV2: the epoch tells whether the request is new or repeated."""
    if current is not None and _was_raised(current, ending.producer):
        return _repeated(current, ending)
    found = _known(current, ending.producer.producer_id)
    if ending.producer.epoch != found.epoch:
        raise _fenced(found)
    if found.status.is_prepared:
        # The producer has begun, and given up, while the markers of its last transaction are
        # written. Kafka takes it for a fenced one.
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "its last transaction is being ended")
    next_id = fresh_id() if found.is_exhausted else NO_ID
    if found.status is TransactionStatus.ONGOING:
        return found.decided(
            is_commit=ending.is_commit,
            version=ending.version,
            epoch=found.raised_epoch,
            next_producer_id=next_id,
            now_ms=now_ms,
        )
    if ending.is_commit:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "there is no transaction to commit")
    return found.aborted_empty(epoch=found.raised_epoch, next_producer_id=next_id, now_ms=now_ms)


def _was_raised(current: Transaction, producer: ProducerName) -> bool:
    """Whether the epoch is the one before the present one, which an end has raised."""
    if current.version < EPOCH_PER_TRANSACTION:
        return False
    if current.status not in _COMPLETE and not current.status.is_prepared:
        return False
    if producer.producer_id == current.producer_id:
        return producer.epoch + 1 == current.epoch
    is_previous = producer.producer_id == current.previous_producer_id
    return is_previous and current.epoch == 0 and producer.epoch == LAST_GIVEN_EPOCH


def _repeated(current: Transaction, ending: Ending) -> Transaction:
    """The transaction as it is, if it has the same outcome; CONCURRENT_TRANSACTIONS until then."""
    same = (
        (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)
        if ending.is_commit
        else (TransactionStatus.PREPARE_ABORT, TransactionStatus.COMPLETE_ABORT)
    )
    if current.status not in same:
        detail = f"the transaction is {current.status.shown}"
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, detail)
    if current.status.is_prepared:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the markers are being written")
    return current


# --- identities ----------------------------------------------------------------------------------


def _known(current: Transaction | None, producer_id: int) -> Transaction:
    if current is None or current.producer_id != producer_id:
        _check_not_next(current, producer_id)
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the transactional id has another producer id"
        )
    return current


def _check_not_next(current: Transaction | None, producer_id: int) -> None:
    """KafkaError CONCURRENT_TRANSACTIONS if the producer has this id as soon as markers allow."""
    if current is not None and producer_id == current.next_producer_id != NO_ID:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "its last transaction is being ended")


def _fenced(current: Transaction) -> KafkaError:
    return KafkaError(ErrorCode.PRODUCER_FENCED, f"the producer's epoch is {current.epoch}")
