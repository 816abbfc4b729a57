"""Both indexes of a segment, kept in step, and how they are stored and loaded.

Entry i says: before `positions[i]`, where the batch at `offsets[i]` begins, no batch reaches that
offset and none has a timestamp above `timestamps[i]`. So indexing can resume at any entry: loading
reads what the files hold, drops all of it if it does not fit the segment, and walks the segment's
headers from the last entry on to add the rest.
"""

from __future__ import annotations

from typing import final

from tidemill.core.errors import StorageFault
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.log_file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, offset_path
from tidemill.storage.index.header_walk import walk_headers
from tidemill.storage.index.offset_index import OffsetIndex
from tidemill.storage.index.time_index import TimeIndex
from tidemill.wire.batch import HEADER_BYTES, NO_TIMESTAMP, CorruptBatch, read_header

__all__ = ["IndexBlock", "SegmentIndex", "index_paths", "unlink_index_files", "write_block"]

IndexBlock = tuple[str, int, bytes]
"""A file's path, a position, and the bytes to write there."""


@final
class SegmentIndex:
    """The entries of one segment and the greatest timestamp of all its batches."""

    __slots__ = (
        "_interval_bytes",
        "_next_entry_at",
        "_stored",
        "fault",
        "max_timestamp",
        "offsets",
        "times",
    )

    def __init__(self, offsets: OffsetIndex, times: TimeIndex, *, interval_bytes: int) -> None:
        self.offsets = offsets
        self.times = times
        self._interval_bytes = interval_bytes
        self._stored = (0, 0, 0)
        """Entries in the files, and the size of each file."""
        self.fault: CorruptBatch | None = None
        """Damage in the segment: no entries follow it, and `max_timestamp` is unknown."""
        last = offsets.positions[-1] if len(offsets) else 0
        self.max_timestamp = times.timestamps[-1] if len(times) else NO_TIMESTAMP
        self._next_entry_at = last + interval_bytes

    @classmethod
    def empty(cls, base_offset: int, *, interval_bytes: int) -> SegmentIndex:
        """For a segment without a batch."""
        return cls(OffsetIndex(base_offset), TimeIndex(base_offset), interval_bytes=interval_bytes)

    @classmethod
    def load(
        cls,
        disk: Disk,
        directory: str,
        file: DiskFile,
        *,
        base_offset: int,
        size_bytes: int,
        interval_bytes: int,
    ) -> SegmentIndex:
        """From the files as far as they are valid, the rest from the segment itself."""
        index = _try_read(disk, directory, base_offset, interval_bytes)
        if index is None or not index._fits(file, size_bytes):
            unlink_index_files(disk, directory, base_offset)
            index = cls.empty(base_offset, interval_bytes=interval_bytes)
        index._catch_up(file, size_bytes)
        return index

    def note(self, base_offset: int, max_timestamp: int, position: int) -> None:
        """A batch, or several at once, was appended at `position`."""
        if position >= self._next_entry_at:
            self.times.add(self.max_timestamp)
            self.offsets.add(base_offset, position)
            self._next_entry_at = position + self._interval_bytes
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    def cut(self, file: DiskFile, size_bytes: int) -> SegmentIndex:
        """The index of the segment cut to `size_bytes`, after its index files were unlinked.

        A new object: a reader in a thread may still use this one.
        """
        count = self.offsets.entry_at_position(size_bytes - 1) + 1
        offsets, times = self.offsets.head(count), self.times.head(count)
        index = SegmentIndex(offsets, times, interval_bytes=self._interval_bytes)
        index._catch_up(file, size_bytes)
        return index

    def take_blocks(self, directory: str) -> list[IndexBlock]:
        """The entries that the files lack. Sync the bytes they describe before writing them."""
        entries, offset_bytes, time_bytes = self._stored
        if entries == len(self.offsets):
            return []
        offset_name, time_name = index_paths(directory, self.offsets.base_offset)
        offset_block = self.offsets.encode_from(entries)
        time_block = self.times.encode_from(entries)
        self._stored = (
            len(self.offsets),
            offset_bytes + len(offset_block),
            time_bytes + len(time_block),
        )
        return [(offset_name, offset_bytes, offset_block), (time_name, time_bytes, time_block)]

    def _fits(self, file: DiskFile, size_bytes: int) -> bool:
        """Whether the last entry names a batch: a file from another history would not."""
        if not len(self.offsets):
            return True
        position = self.offsets.positions[-1]
        if position + HEADER_BYTES > size_bytes:
            return False
        try:
            header = read_header(file.pread(HEADER_BYTES, position))
        except CorruptBatch:
            return False
        return header.base_offset == self.offsets.base_offset + self.offsets.offsets[-1]

    def _catch_up(self, file: DiskFile, size_bytes: int) -> None:
        start = self.offsets.positions[-1] if len(self.offsets) else 0
        self.fault = None
        try:
            for position, header in walk_headers(file, start, size_bytes):
                self.note(header.base_offset, header.max_timestamp, position)
        except CorruptBatch as err:
            self.fault = err


def _try_read(
    disk: Disk, directory: str, base_offset: int, interval_bytes: int
) -> SegmentIndex | None:
    offset_name, time_name = index_paths(directory, base_offset)
    try:
        offset_data, time_data = disk.read_file(offset_name), disk.read_file(time_name)
    except StorageFault:
        return None
    offsets, offset_bytes = OffsetIndex.decode(
        offset_data, base_offset=base_offset, name=offset_name
    )
    times, time_bytes = TimeIndex.decode(time_data, base_offset=base_offset, name=time_name)
    if len(offsets) != len(times):
        return None
    index = SegmentIndex(offsets, times, interval_bytes=interval_bytes)
    index._stored = (len(offsets), offset_bytes, time_bytes)
    return index


def write_block(disk: Disk, block: IndexBlock) -> None:
    """Write a block into its file, which is created if it is missing."""
    path, position, data = block
    file = disk.open(path, create=not disk.exists(path))
    try:
        file.pwrite([data], position)
    finally:
        file.close()


def index_paths(directory: str, base_offset: int) -> tuple[str, str]:
    """The paths of a segment's two index files, which may be missing."""
    return (
        offset_path(directory, base_offset, INDEX_SUFFIX),
        offset_path(directory, base_offset, TIME_INDEX_SUFFIX),
    )


def unlink_index_files(disk: Disk, directory: str, base_offset: int) -> None:
    """Before a segment is cut or removed: an index that claims too much is worse than none."""
    for path in index_paths(directory, base_offset):
        if disk.exists(path):  # a look is cheap, and most small segments have none
            disk.unlink(path)
