"""Walks the batches of a log that is being recovered by their headers; damage is noted and skipped.

What is above the recovery point was scanned with checksums before, and cut at the first fault
(`checked_scan`, `tail_cut`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import final

from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import INDEX_SUFFIX, offset_path
from tidemill.storage.index.header_walk import walk_headers
from tidemill.storage.index.offset_index import OffsetIndex
from tidemill.storage.recovery.checked_scan import try_find_batch_after
from tidemill.storage.recovery.recovery_report import Damage, PartitionReport
from tidemill.storage.recovery.segment_files import SegmentFile
from tidemill.wire.batch import HEADER_BYTES, BatchHeader, CorruptBatch, read_header

__all__ = ["SegmentWalk"]


@final
class SegmentWalk:
    """The segments that are left of one log, and what is wrong with them."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        directory: str,
        segments: list[SegmentFile],
        *,
        recovery_point: int,
        log_start_offset: int,
    ) -> None:
        self._disk = disk
        self._files = files
        self._directory = directory
        self.recovery_point = recovery_point
        """Everything below it was flushed."""
        self.segments = segments
        """Oldest first; recovery cuts them, and starts new ones."""
        self.log_start_offset = log_start_offset
        """Nobody misses what is damaged below."""
        self.unappendable: set[str] = set()
        """Segments with invalid bytes, also below the log start."""
        self.report = PartitionReport()

    @property
    def log_end_offset(self) -> int:
        return self.segments[-1].next_offset

    def place_of(self, offset: int) -> int:
        """The index of the segment that holds `offset`."""
        return max(
            0, bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        )

    def all_headers(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches from `offset` on."""
        for segment in self.segments[self.place_of(offset) :]:
            for _, header in self.batches_of(segment, offset):
                yield header

    def batches_of(self, segment: SegmentFile, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch of a segment from `offset` on."""
        start = self.indexed_position(segment, offset)
        for position, header in self.headers(segment, *start):
            if header.base_offset >= offset:
                yield position, header

    def headers(
        self, segment: SegmentFile, position: int, next_offset: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch of a segment from a position on."""
        file = self._files.get(segment.path)
        while position < segment.size_bytes:
            try:
                for at, header in walk_headers(file, position, segment.size_bytes):
                    if header.base_offset < next_offset:
                        raise CorruptBatch(f"offset {header.base_offset} after {next_offset - 1}")
                    yield at, header
                    position, next_offset = at + header.size_bytes, header.next_offset
                return
            except CorruptBatch as error:
                detail = error.detail
            self.unappendable.add(segment.path)
            found = try_find_batch_after(
                file, position=position, end=segment.size_bytes, next_offset=next_offset
            )
            resumes_at = self.recovery_point if found is None else found.header.base_offset
            if resumes_at > self.log_start_offset:
                self.note_damage(segment, position, next_offset, detail)
            if found is None:
                return
            position, next_offset = found.position, found.header.base_offset

    def note_damage(
        self, segment: SegmentFile, position: int, next_offset: int, detail: str
    ) -> None:
        """Flushed bytes are invalid or missing; each place is noted once."""
        seen = {(damage.path, damage.position) for damage in self.report.damage}
        if (segment.path, position) not in seen:
            self.report.damage.append(Damage(segment.path, position, next_offset, detail))
            self.report.is_suspect = True

    def indexed_position(self, segment: SegmentFile, offset: int) -> tuple[int, int]:
        """Where to start looking for `offset`: a position, and the offset of the batch there."""
        beginning = 0, segment.base_offset
        path = offset_path(self._directory, segment.base_offset, INDEX_SUFFIX)
        if offset <= segment.base_offset or not self._disk.exists(path):
            return beginning
        index, _ = OffsetIndex.decode(
            self._disk.read_file(path), base_offset=segment.base_offset, name=path
        )
        entry = index.entry_at_offset(offset)
        if entry < 0:
            return beginning
        position = index.positions[entry]
        found_offset = segment.base_offset + index.offsets[entry]
        data = self._files.get(segment.path).pread(HEADER_BYTES, position)
        try:
            fits = read_header(data).base_offset == found_offset
        except CorruptBatch:
            fits = False
        return (position, found_offset) if fits else beginning
