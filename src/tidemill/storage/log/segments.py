"""The segments of one log, oldest first, without gaps: each begins where the one before it ended.

They leave the front of the row one by one, each with a directory sync, and the back of it newest
first: a crash in between leaves a shorter row, never a hole before the recovery point. A segment
that leaves keeps its bytes under another name for a while: readers may hold views of it, and an
operator may want it back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import final

from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import DELETED_SUFFIX
from tidemill.storage.log.interface import TimedOffset
from tidemill.storage.log.segment import Segment
from tidemill.wire.batch import NO_TIMESTAMP, BatchHeader

__all__ = ["Segments"]


@final
class Segments:
    """At least one segment; the last one is the active one."""

    __slots__ = ("_disk", "_files", "_row", "active", "directory")

    def __init__(
        self, disk: Disk, files: FileCache, directory: str, row: Sequence[Segment]
    ) -> None:
        self._disk = disk
        self._files = files
        self._row = list(row)
        self.directory = directory
        self.active = self._row[-1]

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._row)

    @property
    def oldest(self) -> Segment:
        return self._row[0]

    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._row)

    def holding(self, offset: int) -> Segment:
        """The segment that holds `offset`."""
        return self._row[self._place_of(offset)]

    def start(self, base_offset: int, *, index_interval_bytes: int) -> None:
        """Append a new, empty one, which is the active one from now on."""
        segment = Segment.create(
            self._disk,
            self._files,
            self.directory,
            base_offset=base_offset,
            index_interval_bytes=index_interval_bytes,
        )
        if self._row:
            self.active.close()
        self._row.append(segment)
        self.active = segment

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """`new` holds what is to be kept of these neighbours, none of which is the active one."""
        place = self._row.index(old[0])
        self._row[place : place + len(old)] = [new]

    def holds(self, neighbours: Sequence[Segment]) -> bool:
        """Whether these segments still lie side by side."""
        if neighbours[0] not in self._row:
            return False
        place = self._row.index(neighbours[0])
        return self._row[place : place + len(neighbours)] == list(neighbours)

    # --- searching -------------------------------------------------------------------------------

    def end_before(self, offset: int) -> int:
        """Where the log ends once every batch that reaches `offset` is gone."""
        finder = self.holding(offset).finder()
        return finder.end_before(finder.locate(offset)[0])

    def headers_from(self, offset: int) -> Iterator[BatchHeader]:
        """The headers from the batch that reaches `offset` on, for replay."""
        for segment in self._row[self._place_of(offset) :]:
            yield from segment.headers_from(offset)

    def first_at_time(
        self, timestamp_ms: int, *, start_offset: int, end_offset: int
    ) -> TimedOffset | None:
        """The first record with this time or later between the two offsets."""
        for segment in self._below(end_offset):
            if segment.max_timestamp() < timestamp_ms:
                continue
            found = segment.finder().first_at_time(
                timestamp_ms, start_offset=start_offset, end_offset=end_offset
            )
            if found is not None:
                return found
        return None

    def max_timestamp(self, *, start_offset: int, end_offset: int) -> int:
        """The greatest timestamp between the two offsets, -1 where none has one."""
        greatest = NO_TIMESTAMP
        for segment in self._below(end_offset):
            if segment.max_timestamp() > greatest:
                found = segment.finder().max_timestamp(
                    start_offset=start_offset, end_offset=end_offset
                )
                greatest = max(greatest, found)
        return greatest

    def _place_of(self, offset: int) -> int:
        return max(0, bisect_right(self._row, offset, key=_base_offset) - 1)

    def _below(self, end_offset: int) -> list[Segment]:
        row = list(self._row)  # a search may run in a thread while the row changes
        return [segment for segment in row if segment.base_offset < end_offset]

    # --- dropping --------------------------------------------------------------------------------

    def drop_oldest(self) -> str:
        """Take the oldest one out, durably; the path where its bytes still are."""
        path = self._row[0].rename(DELETED_SUFFIX)
        del self._row[0]
        self._disk.sync_directory(self.directory)
        return path

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches `offset`, durably; the row keeps one segment at least."""
        dropped = []
        while self._row[-1].base_offset >= offset and len(self._row) > 1:
            dropped.append(self._row.pop().rename(DELETED_SUFFIX))
        self._disk.sync_directory(self.directory)
        for path in dropped:
            self._disk.unlink(path)
        self.active = self._row[-1]
        if dropped:
            self.active.reopen()
        self.active.truncate_to(offset)

    def restart_at(self, offset: int, *, index_interval_bytes: int) -> None:
        """Drop everything and begin anew with an empty segment, durably."""
        while self._row:
            self._disk.unlink(self.drop_oldest())
        self.start(offset, index_interval_bytes=index_interval_bytes)
        self._disk.sync_directory(self.directory)

    def forget(self) -> None:
        """Hold nothing open any more."""
        for segment in self._row:
            segment.forget()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
