"""HOT PATH. The checks, and the blocking cut, that the file log and the memory log share."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.errors import ErrorCode, KafkaError, invariant
from tidemill.storage.files.disk import Buffer
from tidemill.storage.log.interface import LogCut
from tidemill.wire.batch import (
    CONTROL,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    CorruptBatch,
    iter_headers,
    verify,
)
from tidemill.wire.transaction_marker import TransactionMarker, read_marker

__all__ = [
    "check_order",
    "check_readable",
    "check_start",
    "cut_now",
    "read_markers",
    "verify_stored",
]


def check_order(headers: Sequence[BatchHeader], *, next_offset: int, leader_epoch: int) -> int:
    """The size of the batches to append. Batches out of order would make the log unreadable."""
    size_bytes = 0
    for header in headers:
        invariant(header.base_offset >= next_offset, "offsets of appended batches must rise")
        invariant(header.partition_leader_epoch >= leader_epoch, "leader epochs must not fall")
        next_offset = header.base_offset + header.last_offset_delta + 1
        leader_epoch = header.partition_leader_epoch
        size_bytes += LOG_OVERHEAD_BYTES + header.batch_length
    return size_bytes


def verify_stored(chunks: Sequence[Buffer], *, next_offset_max: int) -> None:
    """Raises CorruptBatch unless these are whole batches of a segment that ends at this offset.

    Checksums cover neither offsets nor lengths, so offsets must rise, and all bytes belong to one.
    """
    next_offset = 0
    for chunk in chunks:
        view, end = memoryview(chunk), 0
        for position, header in iter_headers(view):
            verify(view[position:], header)
            if not next_offset <= header.base_offset < next_offset_max:
                raise CorruptBatch(f"offset {header.base_offset} where {next_offset} is the next")
            next_offset, end = header.next_offset, position + header.size_bytes
        if end != len(view):
            raise CorruptBatch(f"{len(view) - end} bytes after offset {next_offset} are no batch")


def read_markers(
    chunks: Sequence[Buffer], headers: Sequence[BatchHeader]
) -> dict[int, TransactionMarker] | None:
    """What each transaction marker among these batches says, by its offset; None: there is none.

    Raises CorruptBatch.
    """
    for header in headers:
        if header.attributes & CONTROL:
            break
    else:
        return None
    data = memoryview(chunks[0] if len(chunks) == 1 else b"".join(chunks))
    markers, position = {}, 0
    for header in headers:
        end = position + header.size_bytes
        if header.attributes & CONTROL:
            markers[header.base_offset] = read_marker(data[position:end], header)
        position = end
    return markers


def check_readable(offset: int, *, log_start_offset: int, log_end_offset: int) -> None:
    """Raises KafkaError OFFSET_OUT_OF_RANGE for an offset outside the log."""
    if not log_start_offset <= offset <= log_end_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{offset} is not in {log_start_offset}..{log_end_offset}",
        )


def check_start(offset: int, *, log_end_offset: int) -> None:
    """Raises KafkaError OFFSET_OUT_OF_RANGE for a log start after the log's end."""
    if offset > log_end_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is behind {log_end_offset}")


def cut_now(cut: LogCut | None) -> None:
    """All steps of a cut, in one call that blocks."""
    if cut is None:
        return
    cut.read()
    while not cut.begin():
        cut.read()
    cut.perform()
    cut.end()
