"""Transactional batches and markers, for tests of logs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.batches import NOW_MS
from tidemill.storage.log.interface import PartitionLog
from tidemill.wire.batch import NO_SEQUENCE, BatchHeader, assign_offsets, read_header
from tidemill.wire.records import Record, build_batch
from tidemill.wire.transaction_marker import TransactionMarker, build_marker


def records_of(
    producer_id: int,
    *,
    offset: int = 0,
    sequence: int = 0,
    epoch: int = 0,
    count: int = 1,
    leader_epoch: int = 0,
    transactional: bool = True,
    keys: Sequence[bytes | None] = (),
    value: bytes = b"v",
    codec: int = 0,
) -> bytes:
    """One batch of a transaction; sequence -1 is one of a coordinator."""
    names = keys or [None] * count
    return bytes(
        build_batch(
            [Record(value, key=key, timestamp=NOW_MS) for key in names],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            base_offset=offset,
            leader_epoch=leader_epoch,
            transactional=transactional,
            codec=codec,
        )
    )


def marker(
    producer_id: int,
    *,
    commit: bool,
    offset: int = 0,
    epoch: int = 0,
    first: int = -1,
    stable: int = -1,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    made = build_marker(
        TransactionMarker(commit, coordinator_epoch, first, stable),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp=NOW_MS,
    )
    assign_offsets(made, offset, leader_epoch)
    return bytes(made)


def append_one(log: PartitionLog, batch: bytes, *, now_ms: int = NOW_MS) -> BatchHeader:
    header = read_header(batch)
    log.append([memoryview(batch)], [header], now_ms=now_ms)
    return header


def write(
    log: PartitionLog,
    producer_id: int,
    *,
    sequence: int = NO_SEQUENCE,
    epoch: int = 0,
    count: int = 1,
) -> BatchHeader:
    """Append a transactional batch at the log's end."""
    return append_one(
        log,
        records_of(
            producer_id, offset=log.log_end_offset, sequence=sequence, epoch=epoch, count=count
        ),
    )


def end(log: PartitionLog, producer_id: int, *, commit: bool, epoch: int = 0) -> BatchHeader:
    """Append the marker that a leader would append."""
    offset = log.log_end_offset
    first, stable = log.producers.span_ended_at(producer_id, offset)
    return append_one(
        log,
        marker(producer_id, commit=commit, offset=offset, epoch=epoch, first=first, stable=stable),
    )
