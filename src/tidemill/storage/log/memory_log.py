"""One partition's log in memory: for topics that may be lost with the process, and for tests.

It follows the file log's contract, with a batch in index of a segment: retention drops batch by
batch. Nothing needs a flush, so everything appended counts as flushed. It is not compacted:
compaction works on the files of closed segments, and a log in memory has neither.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import final

from tidemill.core.errors import invariant
from tidemill.storage.files.disk import Buffer
from tidemill.storage.index.aborted_index import AbortedIndex, AbortedTransaction
from tidemill.storage.log.batch_finder import first_record_at_time
from tidemill.storage.log.flush_point import FlushPoint
from tidemill.storage.log.interface import LogConfig, LogCut, LogSlice, TimedOffset
from tidemill.storage.log.log_checks import (
    check_order,
    check_readable,
    check_start,
    read_markers,
)
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.log_damage import LogDamage
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.wire.batch import NO_TIMESTAMP, BatchHeader
from tidemill.wire.marks import is_veiled
from tidemill.wire.records import visible_times
from tidemill.wire.transaction_marker import TransactionMarker, read_marker

__all__ = ["MemoryPartitionLog"]

_Stored = tuple[BatchHeader, bytes, int]
"""Header, batch, and append time."""


@final
class MemoryPartitionLog:
    """`PartitionLog` without a disk."""

    def __init__(self, config: LogConfig, *, base_offset: int = 0) -> None:
        self.config = config
        self.directory = ""
        self.log_start_offset = base_offset
        self.log_end_offset = base_offset
        self._batches: list[_Stored] = []
        self.is_closed = False
        self.size_bytes = 0
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()
        self.damage = LogDamage()
        self._aborted = AbortedIndex(0)

    @property
    def flushed_offset(self) -> int:
        return self.log_end_offset

    def set_config(self, config: LogConfig) -> None:
        self.config = config

    def append(
        self, chunks: Sequence[Buffer], headers: Sequence[BatchHeader], *, now_ms: int
    ) -> None:
        data = memoryview(b"".join(chunks))
        size_bytes = check_order(
            headers, next_offset=self.log_end_offset, leader_epoch=self.epochs.latest
        )
        invariant(size_bytes == len(data), "the headers do not describe the bytes appended")
        markers = read_markers(chunks, headers) or {}
        position = 0
        for header in headers:
            batch = bytes(data[position : position + header.size_bytes])
            position += header.size_bytes
            marker = markers.get(header.base_offset)
            self._batches.append((header, batch, now_ms))
            self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            self._remember(header, marker, now_ms)
        self.size_bytes += len(data)
        self.log_end_offset = headers[-1].next_offset

    def _remember(
        self, header: BatchHeader, marker: TransactionMarker | None, appended_ms: int
    ) -> None:
        if marker is None:
            self.producers.update(header, appended_ms)
            return
        self.producers.end_transaction(header, marker, appended_ms)
        self._aborted.note(header, marker)

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool = True
    ) -> LogSlice:
        check_readable(
            offset, log_start_offset=self.log_start_offset, log_end_offset=self.log_end_offset
        )
        chunks: list[bytes] = []
        size_bytes = 0
        for index in range(self._index_of(offset), len(self._batches)):
            header, batch, _ = self._batches[index]
            fits = size_bytes + len(batch) <= max_bytes or (at_least_one and not chunks)
            if not fits or header.last_offset >= end_offset:
                break
            chunks.append(batch)
            size_bytes += len(batch)
        return LogSlice(chunks, size_bytes)

    def doubt(self, offset: int) -> None:
        pass  # nothing at rest can be damaged

    def try_find_aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return self._aborted.find(start_offset, end_offset)[0]

    def find_aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return self.try_find_aborted(start_offset, end_offset)

    def offset_by_time(self, timestamp_ms: int, *, end_offset: int) -> TimedOffset | None:
        for header, batch, _ in self._batches:
            if header.base_offset >= end_offset:
                break
            if header.max_timestamp < timestamp_ms:
                continue
            found = first_record_at_time(
                memoryview(batch),
                header,
                timestamp_ms,
                start_offset=self.log_start_offset,
                end_offset=end_offset,
            )
            if found is not None:
                return found
        return None

    def max_timestamp(self, *, end_offset: int) -> TimedOffset | None:
        times = [NO_TIMESTAMP]
        for header, batch, _ in self._batches:
            if header.base_offset >= end_offset:
                break
            if is_veiled(header):
                times += [time for _, time in visible_times(memoryview(batch), header)]
            else:
                times.append(header.max_timestamp)
        greatest = max(times)
        if greatest == NO_TIMESTAMP:
            return None
        return self.offset_by_time(greatest, end_offset=end_offset)

    def plan_truncation(self, offset: int) -> LogCut | None:
        return None if offset >= self.log_end_offset else _MemoryCut(self.truncate_to, offset)

    def plan_restart(self, offset: int) -> LogCut:
        return _MemoryCut(self.restart_at, offset)

    def truncate_to(self, offset: int) -> None:
        if offset >= self.log_end_offset:
            return
        if offset <= self.log_start_offset:
            self.restart_at(offset)
            return
        index = self._index_of(offset)
        cut = self._batches[index:]
        start = min([self.log_start_offset, *(header.base_offset for header, _, _ in cut)])
        self.log_end_offset = self._batches[index - 1][0].next_offset if index else start
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self.size_bytes -= sum(len(batch) for _, batch, _ in cut)
        del self._batches[index:]
        self.epochs.truncate_from_end(self.log_end_offset)
        self.producers = ProducerStates()
        self._aborted = AbortedIndex(0)
        for header, batch, appended_ms in self._batches:
            marker = read_marker(memoryview(batch), header) if header.is_control else None
            self._remember(header, marker, appended_ms)

    def restart_at(self, offset: int) -> None:
        self._batches.clear()
        self.size_bytes = 0
        self.log_start_offset = self.log_end_offset = offset
        self.epochs.clear()
        self.producers.clear()
        self._aborted = AbortedIndex(0)

    def advance_start(self, offset: int) -> None:
        check_start(offset, log_end_offset=self.log_end_offset)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)
            self._drop_first(self._index_of(offset))

    def expired(self, *, now_ms: int, end_offset: int) -> tuple[int, int]:
        count = self._expired_count(now_ms, end_offset)
        gone = self._batches[:count]
        end = gone[-1][0].next_offset if gone else self.log_start_offset
        return end, sum(len(batch) for _, batch, _ in gone)

    def apply_retention(self, *, now_ms: int, high_watermark: int) -> int:
        count = self._expired_count(now_ms, high_watermark)
        if count:
            self.advance_start(self._batches[count - 1][0].next_offset)
        return count

    def _expired_count(self, now_ms: int, end_offset: int) -> int:
        count, left_bytes = 0, self.size_bytes
        for header, batch, appended_ms in self._batches:
            left_bytes -= len(batch)
            newest_ms = header.max_timestamp if header.max_timestamp >= 0 else appended_ms
            by_size = 0 <= self.config.retention_bytes <= left_bytes
            by_time = 0 <= self.config.retention_ms < now_ms - newest_ms
            may_go = self.config.deletes and (by_size or by_time)
            if header.next_offset > end_offset or not may_go:
                break
            count += 1
        return count

    def take_flush_point(self) -> FlushPoint | None:
        return None

    def take_sync_point(self) -> FlushPoint | None:
        return None

    def flushed(self, point: FlushPoint) -> None:
        raise NotImplementedError("a log in memory gives out no flush points")

    def close(self) -> None:
        self.is_closed = True
        self._batches.clear()

    def _index_of(self, offset: int) -> int:
        """The first batch that reaches `offset`."""
        return bisect_left(self._batches, offset, key=_last_offset)

    def _drop_first(self, count: int) -> None:
        self.size_bytes -= sum(len(batch) for _, batch, _ in self._batches[:count])
        del self._batches[:count]


@final
class _MemoryCut:
    """`LogCut` without files: the cut is done when it begins."""

    def __init__(self, cut: Callable[[int], None], offset: int) -> None:
        self._cut = cut
        self._offset = offset

    def read(self) -> None:
        return

    def is_in_journal(self) -> bool:
        return False

    def begin(self) -> bool:
        self._cut(self._offset)
        return True

    def perform(self) -> None:
        return

    def end(self) -> None:
        return


def _last_offset(stored: _Stored) -> int:
    return stored[0].last_offset
