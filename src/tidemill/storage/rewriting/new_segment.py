"""A segment that is written beside a log, and then takes the place of neighbouring segments.

Compaction writes what survives of them, mending what they should have had. `swap_steps` puts the
result in place; see `segment_swap` for what a crash leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import final

from tidemill.storage.files.disk import Buffer, Disk
from tidemill.storage.files.log_file_names import CLEANED_SUFFIX
from tidemill.storage.index.segment_index import SegmentIndex, index_paths
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment
from tidemill.storage.log.segment_swap import open_cleaned
from tidemill.storage.log.segments import Segments

__all__ = ["LogChanged", "NewSegment", "Step", "swap_steps"]

Step = Callable[[], None]
"""Waits for the disk: for `Disk.run`."""


class LogChanged(Exception):
    """The log was cut or closed while a new segment was written; nothing is wrong with it."""


@final
class NewSegment:
    """The file and the index of one new segment, until a swap has placed it or it is discarded."""

    def __init__(
        self, disk: Disk, sources: Sequence[Segment], *, index_interval_bytes: int
    ) -> None:
        """It will replace `sources`, from the first's base offset to the last's end."""
        first = sources[0]
        self._disk = disk
        self.sources = sources
        self._index_interval_bytes = index_interval_bytes
        self.index = SegmentIndex.empty(first.base_offset, interval_bytes=index_interval_bytes)
        self._file = open_cleaned(disk, first.path)
        self._paths = index_paths(first.directory, first.base_offset)
        self._index_files = [open_cleaned(disk, path) for path in self._paths]
        self.is_placed = False
        """Readers have it."""
        self.size_bytes = 0
        """Noted so far."""

    def note(self, base_offset: int, max_timestamp: int, size_bytes: int) -> None:
        """These bytes come next; `write` writes them."""
        self.index.note(base_offset, max_timestamp, self.size_bytes)
        self.size_bytes += size_bytes

    def write(self, chunks: Sequence[Buffer]) -> int:
        """Write the bytes that were noted last; how many that are."""
        written = sum(map(len, chunks))
        if written:
            self._file.pwrite(chunks, self.size_bytes - written)
        return written

    def sync(self) -> None:
        """Make it durable. Its index need not be."""
        self._file.sync()
        files = dict(zip(self._paths, self._index_files, strict=True))
        for path, position, block in self.index.take_blocks(self.sources[0].directory):
            files[path].pwrite([block], position)

    def pin_sources(self) -> None:
        for segment in self.sources:
            segment.pin()

    def take_segment(self, segments: Segments) -> Segment:
        """For `log.begin_swap`."""
        segment = segments.adopted(
            base_offset=self.sources[0].base_offset,
            next_offset=self.sources[-1].next_offset,
            index=self.index,
            index_interval_bytes=self._index_interval_bytes,
            file=self._file,
            size_bytes=self.size_bytes,
        )
        segment.fallback_timestamp_ms = max(source.fallback_timestamp_ms for source in self.sources)
        return segment

    def discard(self) -> None:
        """Remove everything that was not put in place."""
        if self.is_placed:
            return
        for segment in self.sources:
            segment.unpin()
        for path in (self.sources[0].path, *self._paths):
            self._disk.unlink(path + CLEANED_SUFFIX)


def swap_steps(disk: Disk, log: FilePartitionLog, new: NewSegment) -> Iterator[Step]:
    """Put a synced segment in place of its pinned sources. Raises LogChanged.

    The code between two steps runs on the loop.
    """
    sync = partial(disk.sync_directory, log.directory)
    if log.is_being_cut or not log.segments.has_adjacent(new.sources):
        raise LogChanged
    swap = log.begin_swap(new.sources, new.take_segment(log.segments))
    yield sync
    if not log.switch(swap):
        raise LogChanged
    new.is_placed = True
    yield sync
    swap.finish()
    yield sync
    swap.synced()
    yield partial(_unlink, disk, swap.obsolete)


def _unlink(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        disk.unlink(path)
