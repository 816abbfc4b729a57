"""The segments of one log, oldest first, without gaps: each begins where the one before it ends.

Segments leave the front one by one, each with a directory sync (`segment_drop`), and the back
newest first (`log_cut`): a crash in between leaves a shorter list, never a hole before the recovery
point. A segment that left the front keeps its bytes under another name for a while: readers may
hold views of it, and an operator may want it back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import final

from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.index.segment_index import SegmentIndex
from tidemill.storage.log.interface import TimedOffset
from tidemill.storage.log.segment import Segment
from tidemill.wire.batch import NO_TIMESTAMP, BatchHeader
from tidemill.wire.transaction_marker import TransactionMarker

__all__ = ["Segments"]


@final
class Segments:
    """At least one segment; the last one is active."""

    __slots__ = ("_disk", "_files", "_segments", "active", "directory")

    def __init__(
        self, disk: Disk, files: FileCache, directory: str, segments: Sequence[Segment]
    ) -> None:
        self._disk = disk
        self._files = files
        self._segments = list(segments)
        self.directory = directory
        self.active = self._segments[-1]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def oldest(self) -> Segment:
        return self._segments[0]

    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def holding(self, offset: int) -> Segment:
        """The segment that holds `offset`."""
        return self._segments[self._index_of(offset)]

    def planned(self, base_offset: int, *, index_interval_bytes: int) -> Segment:
        """An empty segment for a place in the log, without a file."""
        return Segment.planned(
            self._disk,
            self._files,
            self.directory,
            base_offset=base_offset,
            index_interval_bytes=index_interval_bytes,
        )

    def adopted(
        self,
        *,
        base_offset: int,
        next_offset: int,
        index: SegmentIndex,
        index_interval_bytes: int,
        file: DiskFile,
        size_bytes: int,
    ) -> Segment:
        """A segment that is written but not yet part of the log, for `begin_swap`."""
        return Segment.adopt(
            self._disk,
            self._files,
            self.directory,
            base_offset=base_offset,
            next_offset=next_offset,
            index=index,
            index_interval_bytes=index_interval_bytes,
            file=file,
            size_bytes=size_bytes,
        )

    def start(self, base_offset: int, *, index_interval_bytes: int) -> None:
        """Append a new, empty segment and make it the active one."""
        segment = self.planned(base_offset, index_interval_bytes=index_interval_bytes)
        segment.make_file()
        if self._segments:
            self.active.close()
        self._segments.append(segment)
        self.active = segment

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put `new` in place of these adjacent segments, none of which is active."""
        place = self._segments.index(old[0])
        self._segments[place : place + len(old)] = [new]

    def has_adjacent(self, neighbours: Sequence[Segment]) -> bool:
        """Whether the list still holds these segments, side by side."""
        if neighbours[0] not in self._segments:
            return False
        place = self._segments.index(neighbours[0])
        return self._segments[place : place + len(neighbours)] == list(neighbours)

    # --- searching -------------------------------------------------------------------------------

    def replay_from(self, offset: int) -> Iterator[tuple[BatchHeader, TransactionMarker | None]]:
        """The batches from the one that reaches `offset` on: header, and what a marker says."""
        for segment in self._segments[self._index_of(offset) :]:
            yield from segment.replay_from(offset)

    def with_offsets(self, first: int, last: int) -> list[Segment]:
        """The segments from the one that holds `first` to the one that holds `last`."""
        found = self.snapshot()
        start = max(0, bisect_right(found, first, key=_base_offset) - 1)
        return found[start : bisect_right(found, last, key=_base_offset)]

    def first_at_time(
        self, timestamp_ms: int, *, start_offset: int, end_offset: int
    ) -> TimedOffset | None:
        """The first record between the two offsets with this timestamp or a later one."""
        for segment in self._below(end_offset):
            find = partial(
                _first_at_time,
                segment,
                timestamp_ms,
                start_offset=start_offset,
                end_offset=end_offset,
            )
            found = segment.search(find)
            if found is not None:
                return found
        return None

    def max_timestamp(self, *, start_offset: int, end_offset: int, has_veils: bool = False) -> int:
        """The greatest timestamp between the two offsets, -1 if no record has one.

        `has_veils`: some batches have records that nobody may see.
        """
        greatest = NO_TIMESTAMP
        for segment in self._below(end_offset):
            if segment.search(segment.max_timestamp) > greatest:
                finder = segment.finder()
                find = finder.max_visible_timestamp if has_veils else finder.max_timestamp
                look = partial(find, start_offset=start_offset, end_offset=end_offset)
                greatest = max(greatest, segment.search(look))
        return greatest

    def _index_of(self, offset: int) -> int:
        return max(0, bisect_right(self._segments, offset, key=_base_offset) - 1)

    def _below(self, end_offset: int) -> list[Segment]:
        return [segment for segment in self.snapshot() if segment.base_offset < end_offset]

    # --- dropping --------------------------------------------------------------------------------

    def snapshot(self) -> list[Segment]:
        """The segments as they are now: for a thread that looks at them while the list changes."""
        return list(self._segments)

    def remove_oldest(self, count: int) -> None:
        """Their files have left the log; at least one segment remains."""
        del self._segments[:count]

    def reset(self, segments: Sequence[Segment]) -> None:
        """The log is cut: these are left, the last of them to be appended to."""
        self._segments = list(segments)
        self.active = self._segments[-1]
        if self.active.is_closed:
            self.active.reopen()

    def copy(self) -> Segments:
        """The list as it is now, for a thread."""
        return Segments(self._disk, self._files, self.directory, self._segments)

    def forget(self) -> None:
        """Keep nothing open."""
        for segment in self._segments:
            segment.forget()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _first_at_time(
    segment: Segment, timestamp_ms: int, *, start_offset: int, end_offset: int
) -> TimedOffset | None:
    if segment.max_timestamp() < timestamp_ms:
        return None
    return segment.finder().first_at_time(
        timestamp_ms, start_offset=start_offset, end_offset=end_offset
    )
