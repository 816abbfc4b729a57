"""The control record that ends a producer's transaction in one partition.

A batch with the control bit and one record. Stock clients read the key alone:

    key     version i16 = 0, type i16: 0 abort, 1 commit
    value   version i16 = 0, coordinator epoch i32
    header  `tidemill.transaction`: first offset i64, stable offset i64

The header makes a marker complete in itself: which transaction it ended is known without the
batches before it, so the index of aborted transactions can be rebuilt from any segment alone. Its
*stable offset* says that every transaction that began below it has ended by this marker.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tidemill.core.errors import KafkaError
from tidemill.hot import record_encode
from tidemill.wire.batch import BatchHeader, CorruptBatch, rebuild
from tidemill.wire.records import Record, build_batch, iter_records

__all__ = ["TransactionMarker", "build_marker", "read_marker", "with_horizon"]

_VERSION = 0
_COMMIT = 1
_ABORT = 0
_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_HEADER_NAME = "tidemill.transaction"
_SPAN = Struct(">qq")
_NO_OFFSET = -1


class TransactionMarker(NamedTuple):
    """What a marker says, besides the producer and epoch of its batch."""

    is_commit: bool
    coordinator_epoch: int
    first_offset: int
    """Of the transaction that it ended; -1 if none was open here."""
    stable_offset: int
    """Every transaction that began below has ended here."""

    @property
    def aborts_records(self) -> bool:
        """Whether readers of committed records must skip something because of it."""
        return not self.is_commit and self.first_offset >= 0


EMPTIED = TransactionMarker(True, -1, _NO_OFFSET, _NO_OFFSET)
"""Compaction has emptied the batch: nothing of its transaction is left."""


def build_marker(
    marker: TransactionMarker, *, producer_id: int, producer_epoch: int, timestamp: int
) -> bytearray:
    """The batch, without offset and leader epoch."""
    record = Record(
        _VALUE.pack(_VERSION, marker.coordinator_epoch),
        key=_KEY.pack(_VERSION, _COMMIT if marker.is_commit else _ABORT),
        timestamp=timestamp,
        headers=[(_HEADER_NAME, _SPAN.pack(marker.first_offset, marker.stable_offset))],
    )
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(view: memoryview, header: BatchHeader) -> TransactionMarker:
    """What the control batch in `view` says. Raises CorruptBatch."""
    if not header.record_count:
        return EMPTIED
    try:
        marker = _try_read(list(iter_records(view, header)))
    except KafkaError as error:
        raise CorruptBatch(error.detail) from None
    if marker is None:
        raise CorruptBatch(f"no transaction marker at offset {header.base_offset}")
    return marker


def with_horizon(view: memoryview, header: BatchHeader, delete_horizon_ms: int) -> bytearray:
    """The same marker with a delete horizon, as compaction sets it (KIP-534)."""
    records = list(iter_records(view, header))
    rows: list[record_encode.Row] = [
        (
            record.offset - header.base_offset,
            record.timestamp - delete_horizon_ms,
            record.key,
            record.value,
            [(name.encode(), data) for name, data in record.headers],
        )
        for record in records
    ]
    return rebuild(
        header,
        record_encode.encode(rows),
        record_count=len(records),
        max_timestamp=header.max_timestamp,
        delete_horizon_ms=delete_horizon_ms,
    )


def _try_read(records: list[Record]) -> TransactionMarker | None:
    key, value = records[0].key or b"", records[0].value or b""
    if len(records) != 1 or len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    kind = _KEY.unpack_from(key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    span = dict(records[0].headers).get(_HEADER_NAME) or b""
    first_offset = stable_offset = _NO_OFFSET
    if len(span) >= _SPAN.size:
        first_offset, stable_offset = _SPAN.unpack_from(span)
    coordinator_epoch = _VALUE.unpack_from(value)[1]
    return TransactionMarker(kind == _COMMIT, coordinator_epoch, first_offset, stable_offset)
