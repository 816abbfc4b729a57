"""The indexes of a segment, kept in step, and how they are stored and loaded.

Entry i says: before `positions[i]`, where the batch at `offsets[i]` begins, no batch reaches that
offset and none has a timestamp above `timestamps[i]`. So indexing can resume at any entry: loading
reads what the files hold, drops all of it if it does not fit the segment, and walks the segment's
headers from the last entry on to add the rest.

The aborted transactions (`aborted_index`) are a third index. Where its file is missing or does not
go with the others, a walk over the segment's headers finds them when somebody asks.
"""

from __future__ import annotations

from typing import final

from tidemill.core.errors import StorageFault
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.log_file_names import (
    ABORTED_INDEX_SUFFIX,
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_path,
)
from tidemill.storage.index.aborted_index import AbortedIndex, AbortedTransaction
from tidemill.storage.index.header_walk import walk_headers
from tidemill.storage.index.offset_index import OffsetIndex
from tidemill.storage.index.time_index import TimeIndex
from tidemill.wire.batch import (
    CONTROL,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    read_header,
)
from tidemill.wire.transaction_marker import TransactionMarker, read_marker

__all__ = [
    "IndexBlock",
    "SegmentIndex",
    "index_paths",
    "marker_at",
    "unlink_index_files",
    "write_block",
]

_RELATIVE_OFFSET_MAX = 2**31 - 1
"""More does not fit into an entry: only damage says so."""

IndexBlock = tuple[str, int, bytes]
"""A file's path, a position, and the bytes to write there."""


@final
class SegmentIndex:
    """The entries of one segment and the greatest timestamp of all its batches."""

    __slots__ = (
        "_aborted_from",
        "_interval_bytes",
        "_next_entry_at",
        "_older_aborted",
        "_stored",
        "_stored_aborted",
        "aborted",
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
        self._stored_aborted = (0, 0)
        """The same of the aborted transactions."""
        self.aborted = AbortedIndex(offsets.base_offset)
        self._aborted_from = 0
        """`aborted` has the markers from this position on; the older ones are found on demand."""
        self._older_aborted: AbortedIndex | None = None
        self.fault: CorruptBatch | None = None
        """Damage in the segment: nothing is known of what follows it, nor `max_timestamp`."""
        last = offsets.positions[-1] if len(offsets) else 0
        self.max_timestamp = times.timestamps[-1] if len(times) else NO_TIMESTAMP
        self._next_entry_at = last + interval_bytes

    @classmethod
    def empty(cls, base_offset: int, *, interval_bytes: int) -> SegmentIndex:
        """For a segment without a batch."""
        return cls(OffsetIndex(base_offset), TimeIndex(base_offset), interval_bytes=interval_bytes)

    @classmethod
    def unknown(cls, base_offset: int, *, interval_bytes: int, detail: str) -> SegmentIndex:
        """For a segment that cannot be read."""
        index = cls.empty(base_offset, interval_bytes=interval_bytes)
        index.fault = CorruptBatch(detail)
        return index

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

    def note_marker(self, header: BatchHeader, marker: TransactionMarker) -> None:
        """A transaction marker was appended."""
        self.aborted.note(header, marker)

    @property
    def knows_aborted(self) -> bool:
        """Whether `find_aborted` needs no look at the segment."""
        return self._aborted_from == 0 or self._older_aborted is not None

    def find_aborted(
        self, file: DiskFile, start_offset: int, end_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """As `AbortedIndex.find`. May wait for the disk. Raises CorruptBatch."""
        if self.fault is not None:  # readers of what follows must not get what was aborted
            raise self.fault
        found: list[AbortedTransaction] = []
        if self._aborted_from:
            older = self._older_aborted
            if older is None:
                older = self._older_aborted = self._walk_for_aborted(file)
            found, is_complete = older.find(start_offset, end_offset)
            if is_complete:
                return found, True
        newer, is_complete = self.aborted.find(start_offset, end_offset)
        return found + newer, is_complete

    def _walk_for_aborted(self, file: DiskFile) -> AbortedIndex:
        aborted = AbortedIndex(self.offsets.base_offset)
        for position, header in walk_headers(file, 0, self._aborted_from):
            if header.attributes & CONTROL:
                aborted.note(header, marker_at(file, position, header))
        return aborted

    def cut(self, file: DiskFile, size_bytes: int) -> SegmentIndex:
        """The index of the segment cut to `size_bytes`, after its index files were unlinked.

        A new object: a reader in a thread may still use this one.
        """
        count = self.offsets.entry_at_position(size_bytes - 1) + 1
        offsets, times = self.offsets.head(count), self.times.head(count)
        index = SegmentIndex(offsets, times, interval_bytes=self._interval_bytes)
        start = offsets.positions[-1] if count else 0
        index._aborted_from = min(self._aborted_from, start)
        if self._aborted_from < start:
            index.aborted = self.aborted.head(offsets.base_offset + offsets.offsets[-1])
        index._catch_up(file, size_bytes)
        return index

    def take_blocks(self, directory: str) -> list[IndexBlock]:
        """The entries that the files lack. Sync the bytes they describe before writing them."""
        entries, offset_bytes, time_bytes = self._stored
        if entries == len(self.offsets):
            return []
        offset_name, time_name, aborted_name = index_paths(directory, self.offsets.base_offset)
        offset_block = self.offsets.encode_from(entries)
        time_block = self.times.encode_from(entries)
        self._stored = (
            len(self.offsets),
            offset_bytes + len(offset_block),
            time_bytes + len(time_block),
        )
        blocks = [(offset_name, offset_bytes, offset_block), (time_name, time_bytes, time_block)]
        aborted = self.aborted
        if aborted.has_markers and self._aborted_from == 0:
            first, position = self._stored_aborted
            block = aborted.encode_from(first, covered=len(self.offsets))
            self._stored_aborted = (len(aborted), position + len(block))
            blocks.append((aborted_name, position, block))
        return blocks

    def _read_aborted(self, disk: Disk, path: str) -> None:
        """Read the third file, if it goes with the other two."""
        self._aborted_from = self.offsets.positions[-1]
        if disk.exists(path):
            aborted, covered, size_bytes = AbortedIndex.decode(
                disk.read_file(path), base_offset=self.offsets.base_offset, name=path
            )
            if covered == len(self.offsets):
                self.aborted, self._aborted_from = aborted, 0
                self._stored_aborted = (len(aborted), size_bytes)

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
        base_offset = next_offset = self.offsets.base_offset
        start = 0
        if len(self.offsets):
            start, next_offset = self.offsets.positions[-1], base_offset + self.offsets.offsets[-1]
        self.fault = None
        try:
            for position, header in walk_headers(file, start, size_bytes):
                if not next_offset <= header.base_offset <= base_offset + _RELATIVE_OFFSET_MAX:
                    raise CorruptBatch(f"offset {header.base_offset} where {next_offset} is next")
                next_offset = header.next_offset
                self.note(header.base_offset, header.max_timestamp, position)
                if header.attributes & CONTROL:
                    self.aborted.note(header, marker_at(file, position, header))
        except CorruptBatch as err:
            self.fault = err


def _try_read(
    disk: Disk, directory: str, base_offset: int, interval_bytes: int
) -> SegmentIndex | None:
    offset_name, time_name, aborted_name = index_paths(directory, base_offset)
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
    if len(offsets):
        index._read_aborted(disk, aborted_name)
    return index


def write_block(disk: Disk, block: IndexBlock) -> None:
    """Write a block into its file, which is created if it is missing."""
    path, position, data = block
    file = disk.open(path, create=not disk.exists(path))
    try:
        file.pwrite([data], position)
    finally:
        file.close()


def index_paths(directory: str, base_offset: int) -> tuple[str, str, str]:
    """The paths of a segment's three index files, which may be missing."""
    return (
        offset_path(directory, base_offset, INDEX_SUFFIX),
        offset_path(directory, base_offset, TIME_INDEX_SUFFIX),
        offset_path(directory, base_offset, ABORTED_INDEX_SUFFIX),
    )


def marker_at(file: DiskFile, position: int, header: BatchHeader) -> TransactionMarker:
    """What the control batch at this position says. Raises CorruptBatch."""
    return read_marker(memoryview(file.pread(header.size_bytes, position)), header)


def unlink_index_files(disk: Disk, directory: str, base_offset: int) -> None:
    """Before a segment is cut or removed: an index that claims too much is worse than none."""
    for path in index_paths(directory, base_offset):
        if disk.exists(path):  # a look is cheap, and most small segments have none
            disk.unlink(path)
