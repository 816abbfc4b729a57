"""The records of `__transaction_state`, in Kafka's format: one per transactional id.

The key is the id, the value its `Transaction`; a tombstone deletes the id.
"""

from __future__ import annotations

from struct import Struct

from tidemill.coordinators.runtime.shard import CoordinatorRecord
from tidemill.coordinators.transaction.states import TransactionStatus
from tidemill.coordinators.transaction.transaction import Transaction
from tidemill.core.errors import ProtocolViolation
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.transaction_log_record import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from tidemill.wire.message import Message
from tidemill.wire.primitives import Reader, Writer

__all__ = ["transaction_record", "transaction_tombstone", "try_read_id", "try_read_transaction"]

VALUE_VERSION = 1
"""The first flexible one: the ids before and after this one are tagged fields."""
DEAD = 6
"""Kafka's status of an id that is being deleted: as good as a tombstone."""

_HEAD = Struct(">h")


def transaction_record(transaction: Transaction) -> CoordinatorRecord:
    """The record that sets the id to this transaction."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.status.value,
        transaction_partitions=[
            PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()
        ]
        or None,
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.version,
    )
    key = _key(transaction.transactional_id)
    return CoordinatorRecord(key, _encode(VALUE_VERSION, value, VALUE_VERSION))


def transaction_tombstone(transactional_id: str) -> CoordinatorRecord:
    """The record that deletes the id."""
    return CoordinatorRecord(_key(transactional_id), None)


def try_read_id(raw: bytes) -> str | None:
    """The id of a key; None for a kind of record that is unknown. ProtocolViolation: damaged."""
    reader = Reader(raw)
    if reader.int16() != TransactionLogKey.record_type:
        return None
    key = TransactionLogKey.read(reader, 0)
    reader.finish()
    return key.transactional_id


def try_read_transaction(transactional_id: str, raw: bytes) -> Transaction | None:
    """The value of a record; None if the id is being deleted. ProtocolViolation: damaged."""
    reader = Reader(raw, budget=len(raw))
    version = reader.int16()
    if not TransactionLogValue.version_min <= version <= TransactionLogValue.version_max:
        raise ProtocolViolation(f"TransactionLogValue of version {version}")
    value = TransactionLogValue.read(reader, version)
    reader.finish()
    if value.transaction_status == DEAD:
        return None
    try:
        status = TransactionStatus(value.transaction_status)
    except ValueError as error:
        raise ProtocolViolation(f"transaction status {value.transaction_status}") from error
    return Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        status=status,
        partitions=frozenset(
            TopicPartition(entry.topic, index)
            for entry in value.transaction_partitions or ()
            for index in entry.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        version=value.client_transaction_version,
    )


def _key(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id=transactional_id)
    return _encode(TransactionLogKey.record_type, key, 0)


def _encode(head: int, body: Message, version: int) -> bytes:
    writer = Writer()
    writer.buf += _HEAD.pack(head)
    body.write(writer, version)
    return bytes(writer.buf)
