"""Finds batches in a segment by offset, by size and by time.

A finder works on a snapshot: the segment at the size it had when the search began. It reads through
a `Source`, so the same search runs on the loop over a view of resident pages, or in a thread over
the file. Every step is a bisection in the index and a walk over at most one index interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import final

from tidemill.storage.index.header_walk import Source, walk_headers
from tidemill.storage.index.segment_index import SegmentIndex
from tidemill.storage.log.interface import TimedOffset
from tidemill.wire.batch import NO_TIMESTAMP, BatchHeader, CorruptBatch
from tidemill.wire.marks import is_veiled
from tidemill.wire.records import iter_records, try_find_timestamp, visible_times

__all__ = ["BatchFinder", "first_record_at_time"]


def first_record_at_time(
    batch: memoryview,
    header: BatchHeader,
    timestamp_ms: int,
    *,
    start_offset: int,
    end_offset: int,
) -> TimedOffset | None:
    """The batch's first record between the two offsets with this timestamp or a later one."""
    epoch = header.partition_leader_epoch
    if is_veiled(header):
        for offset, timestamp in visible_times(batch, header):
            if timestamp >= timestamp_ms and start_offset <= offset < end_offset:
                return TimedOffset(offset, timestamp, epoch)
        return None
    is_compacted = header.record_count <= header.last_offset_delta
    if start_offset > header.base_offset or is_compacted:
        for record in iter_records(batch, header):
            if record.timestamp >= timestamp_ms and start_offset <= record.offset < end_offset:
                return TimedOffset(record.offset, record.timestamp, epoch)
        return None
    found = try_find_timestamp(batch, header, timestamp_ms)
    if found is None or found[0] >= end_offset:
        return None
    return TimedOffset(found[0], found[1], epoch)


@final
class BatchFinder:
    """Searches the first `size_bytes` of a segment, which hold all offsets below `next_offset`."""

    __slots__ = ("_index", "_next_offset", "_size_bytes", "_source")

    def __init__(
        self, source: Source, index: SegmentIndex, *, size_bytes: int, next_offset: int
    ) -> None:
        self._source = source
        self._index = index
        self._size_bytes = size_bytes
        self._next_offset = next_offset

    def locate(self, offset: int) -> tuple[int, BatchHeader | None]:
        """Position and header of the first batch that reaches `offset`; (size, None) if none."""
        if offset < self._next_offset:
            for position, header in self._walk(self._index.offsets.position_before(offset)):
                if header.last_offset >= offset:
                    return position, header
        return self._size_bytes, None

    def end_before(self, position: int) -> int:
        """The offset after the batch that ends at `position`; the base offset for position 0."""
        offsets = self._index.offsets
        entry = offsets.entry_at_position(position - 1)
        start = offsets.positions[entry] if entry >= 0 else 0
        end = offsets.base_offset
        for _, header in walk_headers(self._source, start, position):
            end = header.next_offset
        return end

    def find_range(
        self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool
    ) -> tuple[int, int]:
        """Start and end of the batches that `PartitionLog.read` would return."""
        start, first = self.locate(offset)
        if first is None or first.last_offset >= end_offset:
            return start, start
        limit = start + max_bytes
        if first.size_bytes > max_bytes:
            return start, start + first.size_bytes if at_least_one else start
        offsets = self._index.offsets
        if end_offset >= self._next_offset:
            stop = self._size_bytes
        elif offsets.position_before(end_offset) <= limit:
            stop = self._stop_before(end_offset, start)
        else:
            stop = limit + 1
        if stop <= limit:
            return start, stop
        return start, self._cut_at(start, limit)

    def first_at_time(
        self, timestamp_ms: int, *, start_offset: int, end_offset: int
    ) -> TimedOffset | None:
        """The first record between the two offsets with this timestamp or a later one."""
        entry = self._index.times.entry_before(timestamp_ms)
        start = self._index.offsets.positions[entry] if entry >= 0 else 0
        for position, header in self._walk(start):
            if header.base_offset >= end_offset:
                break
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            batch = memoryview(self._source.pread(header.size_bytes, position))
            found = first_record_at_time(
                batch, header, timestamp_ms, start_offset=start_offset, end_offset=end_offset
            )
            if found is not None:
                return found
        return None

    def max_timestamp(self, *, start_offset: int, end_offset: int) -> int:
        """The greatest timestamp of the batches that reach into this range; -1 if none has one."""
        offsets, times = self._index.offsets, self._index.times
        if start_offset > offsets.base_offset:
            start, greatest = offsets.position_before(start_offset), NO_TIMESTAMP
        elif end_offset >= self._next_offset:
            return self._index.max_timestamp
        else:
            entry = offsets.entry_at_offset(end_offset - 1)
            start = offsets.positions[entry] if entry >= 0 else 0
            greatest = times.timestamps[entry] if entry >= 0 else NO_TIMESTAMP
        for _, header in self._walk(start):
            if header.base_offset >= end_offset:
                break
            if header.last_offset >= start_offset:
                greatest = max(greatest, header.max_timestamp)
        return greatest

    def max_visible_timestamp(self, *, start_offset: int, end_offset: int) -> int:
        """The same, without records that are held: it looks at every batch."""
        greatest = NO_TIMESTAMP
        for position, header in self._walk(0):
            if header.base_offset >= end_offset:
                break
            if header.last_offset < start_offset or header.max_timestamp <= greatest:
                continue
            if not is_veiled(header):
                greatest = header.max_timestamp
                continue
            batch = memoryview(self._source.pread(header.size_bytes, position))
            for offset, timestamp in visible_times(batch, header):
                if start_offset <= offset < end_offset:
                    greatest = max(greatest, timestamp)
        return greatest

    def _stop_before(self, end_offset: int, start: int) -> int:
        """Where the batch begins that reaches `end_offset`, or damage that comes before it."""
        try:
            return self.locate(end_offset)[0]
        except CorruptBatch:
            stop = start
        with suppress(CorruptBatch):  # the read that begins there finds it
            for position, header in self._walk(start):
                stop = position + header.size_bytes
        return stop

    def _cut_at(self, start: int, limit: int) -> int:
        """The end of a batch at or before `limit`.

        An index entry is such an end, but up to one interval early. Where that would give less
        than half of what was asked for, the headers decide.
        """
        entry = self._index.offsets.entry_at_position(limit)
        cut = self._index.offsets.positions[entry] if entry >= 0 else 0
        if 2 * (cut - start) >= limit - start:
            return cut
        for position, header in self._walk(max(start, cut)):
            if position + header.size_bytes > limit:
                return position
        return self._size_bytes

    def _walk(self, start: int) -> Iterator[tuple[int, BatchHeader]]:
        return walk_headers(self._source, start, self._size_bytes)
