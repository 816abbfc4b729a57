"""Batches for storage tests, and the common operations on a log."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.storage.log.interface import LogSlice, PartitionLog
from tidemill.wire import compression
from tidemill.wire.batch import BatchHeader, iter_headers, read_header
from tidemill.wire.records import Record, build_batch, iter_records

NOW_MS = 1_700_000_000_000


def batch(
    base_offset: int,
    count: int = 1,
    *,
    epoch: int = 0,
    times: Sequence[int] | None = None,
    value: bytes = b"v",
    codec: int = compression.NONE,
    producer: tuple[int, int, int] | None = None,
) -> bytes:
    """One batch; `producer` is (id, epoch, base sequence)."""
    producer_id, producer_epoch, sequence = producer or (-1, -1, -1)
    stamps = times if times is not None else [NOW_MS] * count
    records = [Record(value, timestamp=stamp) for stamp in stamps]
    return bytes(
        build_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            base_offset=base_offset,
            leader_epoch=epoch,
        )
    )


def header(base_offset: int, count: int = 1, **options: object) -> BatchHeader:
    return read_header(batch(base_offset, count, **options))  # type: ignore[arg-type]


def append(log: PartitionLog, *batches: bytes, now_ms: int = NOW_MS) -> None:
    log.append(batches, [read_header(data) for data in batches], now_ms=now_ms)


def fill(log: PartitionLog, count: int, *, records: int = 1, value: bytes = b"v") -> list[bytes]:
    """Append `count` batches, one by one; returns them."""
    written = []
    for _ in range(count):
        written.append(batch(log.log_end_offset, records, value=value))
        append(log, written[-1])
    return written


def data_of(found: LogSlice) -> bytes:
    chunks = found.load() if found.load is not None else found.chunks
    return b"".join(chunks)


def read(
    log: PartitionLog,
    offset: int,
    *,
    max_bytes: int = 1 << 20,
    end_offset: int | None = None,
    at_least_one: bool = True,
) -> bytes:
    end = log.log_end_offset if end_offset is None else end_offset
    return data_of(log.read(offset, max_bytes=max_bytes, end_offset=end, at_least_one=at_least_one))


def drain(log: PartitionLog, offset: int | None = None, *, max_bytes: int = 1 << 20) -> bytes:
    """Everything from `offset` on, in as many reads as needed."""
    at = log.log_start_offset if offset is None else offset
    parts = []
    while at < log.log_end_offset:
        part = read(log, at, max_bytes=max_bytes)
        headers = [found for _, found in iter_headers(part)]
        assert headers, f"nothing to read at {at} of {log.log_end_offset}"
        parts.append(part)
        at = headers[-1].next_offset
    return b"".join(parts)


def offsets_of(data: bytes) -> list[int]:
    found = []
    for position, head in iter_headers(data):
        found += [record.offset for record in iter_records(data[position:], head)]
    return found


def flush(log: PartitionLog) -> None:
    point = log.take_flush_point()
    if point is not None:
        point.sync()
        log.flushed(point)
