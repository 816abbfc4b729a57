"""HOT PATH. Why a log refuses a producer's batch or marker."""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.storage.state.producer_entry import ProducerEntry
from tidemill.wire.batch import BatchHeader

__all__ = [
    "check_unusual",
    "expired_epoch",
    "fenced_coordinator",
    "not_transactional",
    "still_open",
    "too_many_open",
]


def check_unusual(producer: ProducerEntry, header: BatchHeader) -> tuple[int, int, int] | None:
    """Every case except the next batch in line: offsets and timestamp of the batch it repeats.

    None: it begins a newer epoch. Raises KafkaError.
    """
    if header.producer_epoch < producer.epoch:
        raise expired_epoch(header.producer_id, producer, header.producer_epoch)
    if header.producer_epoch > producer.epoch:
        if header.base_sequence == 0:
            return None
        raise _out_of_order(header, expected=0)
    last_sequence = header.last_sequence
    for base, last, base_offset, last_offset, timestamp in producer.window:
        if base == header.base_sequence and last == last_sequence:
            return base_offset, last_offset, timestamp
    raise _out_of_order(header, expected=producer.next_sequence)


def _out_of_order(header: BatchHeader, *, expected: int) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
    )


def expired_epoch(producer_id: int, producer: ProducerEntry, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} has epoch {producer.epoch}, this comes from {epoch}",
    )


def not_transactional(producer_id: int) -> KafkaError:
    detail = f"a transaction of producer {producer_id} is open, the batch is not part of one"
    return KafkaError(ErrorCode.INVALID_TXN_STATE, detail)


def still_open(producer_id: int, producer: ProducerEntry) -> KafkaError:
    detail = f"the transaction of producer {producer_id} in epoch {producer.epoch} is still open"
    return KafkaError(ErrorCode.INVALID_TXN_STATE, detail)


def too_many_open(count: int) -> KafkaError:
    detail = f"too many transactions are open, {count} of them in this partition: end some first"
    return KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, detail)


def fenced_coordinator(producer_id: int, producer: ProducerEntry, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        f"coordinator epoch {epoch} of producer {producer_id}, "
        f"{producer.coordinator_epoch} has written here",
    )
