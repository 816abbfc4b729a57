"""Helpers for compaction tests: keyed batches, a compacted log, a whole cleaning, a start."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.batches import NOW_MS, drain, flush
from tidemill.storage.compaction.cleanable import try_find_cleanable
from tidemill.storage.compaction.cleaning import Compaction
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.recovery.clean_load import CheckpointedLog
from tidemill.storage.recovery.log_recovery import recover
from tidemill.wire import compression
from tidemill.wire.batch import iter_headers, read_header
from tidemill.wire.records import Record, build_batch, iter_records

PATH = "/d/t-0"
CONFIG = LogConfig(
    segment_bytes=600,
    index_interval_bytes=200,
    deletes=False,
    compacts=True,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1_000,
)

Pair = tuple[bytes | None, bytes | None]


def make_log(disk: Disk, config: LogConfig = CONFIG) -> FilePartitionLog:
    return FilePartitionLog.create(disk, FileCache(disk), PATH, config)


def put(
    log: FilePartitionLog,
    *pairs: Pair,
    codec: int = compression.NONE,
    producer: tuple[int, int, int] | None = None,
    epoch: int = 0,
    now_ms: int = NOW_MS,
    base_offset: int | None = None,
) -> bytes:
    """Append one batch of (key, value) pairs, stamped with their offsets."""
    base = log.log_end_offset if base_offset is None else base_offset
    producer_id, producer_epoch, sequence = producer or (-1, -1, -1)
    records = [
        Record(value, key, timestamp=NOW_MS + base + at, headers=[("h", b"%d" % (base + at))])
        for at, (key, value) in enumerate(pairs)
    ]
    data = build_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        base_offset=base,
        leader_epoch=epoch,
    )
    log.append([data], [read_header(data)], now_ms=now_ms)
    return bytes(data)


def seal(log: FilePartitionLog) -> None:
    """Close the active segment and flush past it, so that all of it may be cleaned."""
    put(log, (b"filler", b"x" * log.config.segment_bytes))
    put(log, (b"filler", b"x"))
    flush(log)


def filled(log: FilePartitionLog) -> None:
    """Several values of each of four keys, all of which may be cleaned."""
    for number in range(30):
        put(log, (b"k%d" % (number % 4), b"%d" % number))
    seal(log)


def clean(
    disk: Disk,
    log: FilePartitionLog,
    *,
    now_ms: int = NOW_MS,
    end_offset: int | None = None,
    buffer_bytes: int = 1 << 16,
) -> Compaction | None:
    """One whole cleaning; None if nothing is dirty."""
    end = log.log_end_offset if end_offset is None else end_offset
    found = try_find_cleanable(log, end, now_ms=now_ms)
    if found is None or not found.is_due:
        return None
    job = Compaction(
        disk,
        log,
        found.segments,
        secret=1 << 100,
        dedupe_buffer_bytes=buffer_bytes,
        now_ms=now_ms,
    )
    for step in job.steps():
        step()
    return job


def records(log: FilePartitionLog) -> list[Record]:
    """Every record of the log except fillers."""
    data = drain(log)
    found = []
    for position, header in iter_headers(data):
        batch = data[position : position + header.size_bytes]
        found += [record for record in iter_records(batch) if record.key != b"filler"]
    return found


def pairs(log: FilePartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records(log)]


def headers_of(log: FilePartitionLog) -> list[tuple[int, int, int]]:
    """(base offset, last offset, record count) of every batch."""
    return [(h.base_offset, h.last_offset, h.record_count) for _, h in iter_headers(drain(log))]


def reopened(disk: Disk, log: FilePartitionLog, recovery_point: int = 0) -> FilePartitionLog:
    """The log as a start after an unclean end finds it."""
    files = FileCache(disk)
    state, report = recover(
        disk,
        files,
        PATH,
        CheckpointedLog(recovery_point=recovery_point),
        index_interval_bytes=200,
        now_ms=NOW_MS,
    )
    assert report.cut is None
    assert not report.damage
    return FilePartitionLog(disk, files, PATH, log.config, state)


def newest(written: Sequence[Pair]) -> dict[bytes | None, bytes | None]:
    return dict(written)
