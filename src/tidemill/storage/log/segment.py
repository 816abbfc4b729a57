"""HOT PATH. One segment of a log: a file of batches, and its index.

Budget: an append takes 3 us and a tail read 4 us, besides one system call each.

Theory of operation. The segment tracks its own size; it never asks the file. An append is one write
at that size. If the write fails, the bytes it left after that size are cut off before anything else
is written there: recovery would take a whole batch among them for an appended one.

A read finds two positions, the first batch that reaches the wanted offset and the end of the last
batch that still fits, and takes the bytes between them in one of three ways:

    just written      the newest batches' positions and pages are in memory: one pread
    resident          a view of the mapped file covers the search and the bytes: no copy. Only of
                      what this process has written, or verified once
    anything else     may wait for the disk: `Disk.run` does the search and the read, and verifies

A closed segment does not change, a growing one changes only at its end, and indexes are only
appended to. So the third way may run in a thread while the loop goes on.

The file stays open while it is dirty: a flush must see every write error, and the kernel reports an
error only to descriptors that were open by then. A segment that ever gave out a view is not cut in
place (SIGBUS); its head is copied to a new file instead (`segment_head`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar, final

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.limits import TAIL_BATCHES_MAX, WARM_TAIL_BYTES
from tidemill.storage.files.disk import Buffer, Disk, DiskFile
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import LOG_SUFFIX, offset_path
from tidemill.storage.index.aborted_index import AbortedTransaction
from tidemill.storage.index.header_walk import NotResident, ResidentRange, Source, walk_headers
from tidemill.storage.index.segment_index import (
    IndexBlock,
    SegmentIndex,
    index_paths,
    marker_at,
    unlink_index_files,
)
from tidemill.storage.log.batch_finder import BatchFinder
from tidemill.storage.log.flush_point import UnsyncedTail
from tidemill.storage.log.interface import LogSlice
from tidemill.storage.log.log_checks import verify_stored
from tidemill.wire.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    read_header,
)
from tidemill.wire.transaction_marker import TransactionMarker

__all__ = ["RELATIVE_OFFSET_MAX", "Segment"]

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""The most offsets that a segment spans."""

_VIEW_BYTES_MIN: Final = 32 * 1024
"""Below this size a copy is cheaper than asking which pages are resident."""
_SEARCH_SLACK_BYTES: Final = 16 * 1024
"""How far past the wanted bytes a search may read, besides two index intervals."""


_Search = Callable[[BatchFinder], tuple[int, int]]
_Found = TypeVar("_Found")


@final
class Segment:
    """The batches from `base_offset` up to `next_offset`."""

    __slots__ = (
        "_closed_max_timestamp",
        "_disk",
        "_files",
        "_has_partial_write",
        "_index",
        "_index_interval_bytes",
        "_pinned",
        "_tail_positions",
        "_verified_bytes",
        "_written_from",
        "base_offset",
        "directory",
        "dirty_file",
        "fallback_timestamp_ms",
        "is_closed",
        "journal_lap",
        "may_have_views",
        "next_offset",
        "path",
        "promised_bytes",
        "size_bytes",
    )

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        directory: str,
        *,
        base_offset: int,
        size_bytes: int,
        next_offset: int,
        index_interval_bytes: int,
        is_closed: bool,
    ) -> None:
        """A segment whose file exists. Nothing is opened or read until it is needed."""
        self._disk = disk
        self._files = files
        self._index_interval_bytes = index_interval_bytes
        self.directory = directory
        self.path = offset_path(directory, base_offset, LOG_SUFFIX)
        self.base_offset = base_offset
        self.next_offset = next_offset
        """The offset after the last batch."""
        self.size_bytes = size_bytes
        self.is_closed = is_closed
        """No more appends."""
        self.fallback_timestamp_ms = NO_TIMESTAMP
        """Replaces an unknown timestamp: when the segment was closed or first looked at."""
        self._index: SegmentIndex | None = None
        self._closed_max_timestamp: int | None = None
        """Cached so that it is known without the index."""
        self._tail_positions: dict[int, int] = {}
        """Base offset -> position of the newest batches, written by this process."""
        self._written_from = size_bytes
        """This process wrote the bytes from here on."""
        self._verified_bytes = 0
        """The checksums of the batches up to here were verified; any thread raises it."""
        self.dirty_file: DiskFile | None = None
        """The open file, while it has unsynced bytes."""
        self.promised_bytes = size_bytes
        """This much of the file is durable: synced, or in the journal."""
        self.journal_lap = 0
        """The last lap of the journal that has bytes of this file; 0: none has."""
        self._has_partial_write = False
        """A failed write may have left bytes after the segment's end."""
        self.may_have_views = False
        """A view of the file may exist."""
        self._pinned: DiskFile | None = None
        """The file that `file` returns regardless of what the path names now."""

    @classmethod
    def create(
        cls,
        disk: Disk,
        files: FileCache,
        directory: str,
        *,
        base_offset: int,
        index_interval_bytes: int,
    ) -> Segment:
        """A new, empty segment. Its name is durable after the next sync of the directory."""
        segment = cls.planned(
            disk,
            files,
            directory,
            base_offset=base_offset,
            index_interval_bytes=index_interval_bytes,
        )
        segment.make_file()
        return segment

    @classmethod
    def planned(
        cls,
        disk: Disk,
        files: FileCache,
        directory: str,
        *,
        base_offset: int,
        index_interval_bytes: int,
    ) -> Segment:
        """An empty segment whose file does not exist yet."""
        segment = cls(
            disk,
            files,
            directory,
            base_offset=base_offset,
            size_bytes=0,
            next_offset=base_offset,
            index_interval_bytes=index_interval_bytes,
            is_closed=False,
        )
        segment._index = SegmentIndex.empty(base_offset, interval_bytes=index_interval_bytes)
        return segment

    def make_file(self) -> None:
        """Create the file of a planned segment."""
        self._files.put(self.path, self._disk.open(self.path, create=True))

    @classmethod
    def adopt(
        cls,
        disk: Disk,
        files: FileCache,
        directory: str,
        *,
        base_offset: int,
        next_offset: int,
        index: SegmentIndex,
        index_interval_bytes: int,
        file: DiskFile,
        size_bytes: int,
    ) -> Segment:
        """A closed segment whose file is not renamed yet; pinned until it is.

        Whoever has written it has verified every batch.
        """
        segment = cls(
            disk,
            files,
            directory,
            base_offset=base_offset,
            size_bytes=size_bytes,
            next_offset=next_offset,
            index_interval_bytes=index_interval_bytes,
            is_closed=True,
        )
        segment._index = index
        segment._pinned = file
        segment._verified_bytes = size_bytes
        files.use_index(segment)
        return segment

    # --- its file --------------------------------------------------------------------------------

    def file(self) -> DiskFile:
        """The segment's file, open."""
        pinned = self._pinned
        if pinned is not None:
            return pinned
        try:
            found = self._files.get(self.path)
        except StorageFault:
            if self._pinned is None:
                raise
            return self._pinned
        # It may have been pinned meanwhile, and the path may already name its successor's file.
        return self._pinned or found

    def pin(self) -> None:
        """Keep file and index even if their names change. May wait for the disk.

        Compaction puts another file under the segment's name. A reader that still uses this one,
        perhaps in a thread, must not read that file with this segment's index.
        """
        self.pin_file()
        try:
            self.load_index()
        except StorageFault as fault:  # it is replaced because of that: searches read the file
            self._index = SegmentIndex.unknown(
                self.base_offset, interval_bytes=self._index_interval_bytes, detail=str(fault)
            )

    def pin_file(self) -> None:
        """Keep the file even if its name changes. May wait for the disk."""
        self._pinned = self.file()

    def unpin(self) -> None:
        """The path names this segment's file from now on."""
        self._pinned = None

    # --- writing ---------------------------------------------------------------------------------

    def append(self, chunks: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Write batches at the end, in one write. On an error nothing was appended."""
        index = self._index or self.load_index()
        file = self.dirty_file or self.file()
        position = self.size_bytes
        if self._has_partial_write:
            self._cut_partial_write(file)
        try:
            file.pwrite(chunks, position)
        except StorageFault:
            self._has_partial_write = True
            self._cut_partial_write(file)
            raise
        self.dirty_file = file
        positions = self._tail_positions
        for header in headers:
            index.note(header.base_offset, header.max_timestamp, position)
            positions[header.base_offset] = position
            position += LOG_OVERHEAD_BYTES + header.batch_length
        self.size_bytes = position
        self.next_offset = headers[-1].next_offset
        if len(positions) > TAIL_BATCHES_MAX:
            self._tail_positions = dict(list(positions.items())[-TAIL_BATCHES_MAX // 2 :])

    def unsynced_tail(self) -> UnsyncedTail:
        """What a flush that is taken now covers of this dirty segment."""
        file = self.dirty_file
        assert file is not None, "a dirty segment keeps its file open"
        return UnsyncedTail(file, self.base_offset, self.promised_bytes, self.size_bytes)

    def _cut_partial_write(self, file: DiskFile) -> None:
        """Cut off what a failed write left; no view of it was given out."""
        file.truncate(self.size_bytes)
        self._has_partial_write = False

    def close(self) -> None:
        """The log rolled: from now on this segment is only cut or deleted."""
        self.is_closed = True
        self._tail_positions = {}
        self._files.use_index(self)

    def reopen(self) -> None:
        """Later segments were dropped: this one is appended to again."""
        self.is_closed = False
        self._closed_max_timestamp = None
        self._files.forget_index(self)

    # --- index -----------------------------------------------------------------------------------

    def load_index(self) -> SegmentIndex:
        """The index, read or rebuilt if it is not in memory. May wait for the disk.

        A damaged segment's index ends at the damage, which only a closed segment can tolerate.
        """
        index = self._index
        if index is None:
            index = SegmentIndex.load(
                self._disk,
                self.directory,
                self.file(),
                base_offset=self.base_offset,
                size_bytes=self.size_bytes,
                interval_bytes=self._index_interval_bytes,
            )
            if index.fault is not None and not self.is_closed:
                raise index.fault
            # The loop may have loaded it, and appended, while a thread did.
            self._index = index = self._index or index
        return index

    def drop_index(self) -> None:
        """Free memory; only a closed segment's index can be loaded again unchanged."""
        if self.is_closed and self._pinned is None:
            self._index = None

    def take_index_blocks(self) -> list[IndexBlock]:
        """The entries missing in the index files, to be written after the segment's next sync."""
        return self._index.take_blocks(self.directory) if self._index is not None else []

    def adopt_index_files(self, suffix: str) -> None:
        """Rename index files that were written under names with `suffix`."""
        for path in index_paths(self.directory, self.base_offset):
            if self._disk.exists(path + suffix):
                self._disk.rename(path + suffix, path)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool) -> LogSlice:
        """Like `PartitionLog.read`, within this segment."""
        positions = self._tail_positions
        start = positions.get(offset)
        if start is not None:
            stop = self.size_bytes if end_offset >= self.next_offset else positions.get(end_offset)
            if stop is not None and 0 < stop - start <= min(max_bytes, _VIEW_BYTES_MIN):
                return _read_slice(self.dirty_file or self.file(), start, stop)
        if self.is_closed:
            self._files.use_index(self)
        elif self._index is None:
            self.search(self.load_index)
        search = _range_search(offset, max_bytes, end_offset, at_least_one=at_least_one)
        return self._read_by_search(search, offset, max_bytes)

    def read_verified(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool,
        may_have_gaps: Callable[[], bool],
    ) -> LogSlice:
        """The same, but memory is not believed either: damage is known, and searches meet it."""
        search = _range_search(offset, max_bytes, end_offset, at_least_one=at_least_one)
        file, size_bytes = self.dirty_file or self.file(), self.size_bytes
        load = partial(self._load, file, search, size_bytes, self.next_offset)

        def load_exactly() -> Sequence[Buffer]:
            chunks = load()
            first = read_header(chunks[0]).base_offset if chunks else offset
            if first > offset and not may_have_gaps():  # its own base offset is under no checksum
                raise CorruptBatch(f"offset {first} where {offset} is wanted")
            return chunks

        return LogSlice((), min(size_bytes, max_bytes), partial(self.search, load_exactly))

    def _read_by_search(self, search: _Search, offset: int, max_bytes: int) -> LogSlice:
        file = self.dirty_file or self.file()
        index, size_bytes = self._index, self.size_bytes
        if index is not None:
            near = index.offsets.position_before(offset)
            is_warm = near >= max(self._written_from, size_bytes - WARM_TAIL_BYTES)
            # What nobody has verified may be damaged, also where the kernel has read it already.
            trusted = size_bytes if near >= self._written_from else self._verified_bytes
            with suppress(CorruptBatch):  # `_load` meets it too, and tells
                if not is_warm or min(max_bytes, size_bytes - near) >= _VIEW_BYTES_MIN:
                    found = self._try_views(file, search, near, max_bytes, trusted)
                    if found is not None:
                        return found
                if is_warm:
                    return _read_slice(file, *search(self.finder(file)))
        load = partial(self._load, file, search, size_bytes, self.next_offset)
        return LogSlice((), min(size_bytes, max_bytes), partial(self.search, load))

    def _try_views(
        self, file: DiskFile, search: _Search, near: int, max_bytes: int, trusted: int
    ) -> LogSlice | None:
        """Search and read in one view, if everything needed is in memory and trusted."""
        search_bytes = 2 * self._index_interval_bytes + _SEARCH_SLACK_BYTES
        reach = min(near + max_bytes + search_bytes, trusted)
        if reach <= near:
            return None
        self.may_have_views = True
        view = file.try_resident_view(near, reach - near)
        if view is None:
            return None
        finder = self.finder(ResidentRange(view, near))
        try:
            start, stop = search(finder)
        except NotResident:
            return None
        if stop > reach:
            return None
        chunks = (view[start - near : stop - near],) if stop > start else ()
        return LogSlice(chunks, stop - start, find_end=partial(finder.end_before, stop))

    def _load(
        self, file: DiskFile, search: _Search, size_bytes: int, next_offset: int
    ) -> Sequence[Buffer]:
        """Runs in a thread. The bytes come from the medium, so checksums are verified."""
        finder = BatchFinder(
            file, self.load_index(), size_bytes=size_bytes, next_offset=next_offset
        )
        start, stop = search(finder)
        found = _read_slice(file, start, stop)
        # Where nothing fits, it must be true what the batch says that was found there.
        checked = found if stop > start else _first_batch(file, start)
        verify_stored(checked.chunks, next_offset_max=next_offset)
        if start <= self._verified_bytes < stop:
            self._verified_bytes = stop
        return found.chunks

    def search(self, look: Callable[[], _Found]) -> _Found:
        """Look for somebody who can come again: the mender hears of damage that is met.

        Raises StorageFault, or KafkaError KAFKA_STORAGE_ERROR.
        """
        try:
            return look()
        except CorruptBatch as damage:
            self._files.suspects.append(self.path)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, damage.detail) from damage
        except StorageFault:
            self._files.suspects.append(self.path)
            raise

    def max_timestamp(self) -> int:
        """The greatest timestamp of its batches, -1 if none has one. May wait for the disk.

        Raises CorruptBatch if damage hides it.
        """
        if self._closed_max_timestamp is not None:
            return self._closed_max_timestamp
        index = self.load_index()
        if index.fault is not None:
            raise index.fault
        if self.is_closed:
            self._closed_max_timestamp = index.max_timestamp
            self._files.use_index(self)
        return index.max_timestamp

    def newest_ms(self, now_ms: int) -> int:
        """The timestamp of its newest record, or a later bound, for retention."""
        try:
            timestamp = self.max_timestamp()
        except CorruptBatch:
            timestamp = NO_TIMESTAMP
        if timestamp != NO_TIMESTAMP:
            return timestamp
        if self.fallback_timestamp_ms == NO_TIMESTAMP:
            self.fallback_timestamp_ms = now_ms
        return self.fallback_timestamp_ms

    def first_timestamp(self) -> int:
        """The timestamp of the first batch, -1 if there is none."""
        first = self.file().pread(HEADER_BYTES, 0) if self.size_bytes else b""
        return read_header(first).max_timestamp if first else NO_TIMESTAMP

    def replay_from(self, offset: int) -> Iterator[tuple[BatchHeader, TransactionMarker | None]]:
        """The batches from the one that reaches `offset` on: header, and what a marker says."""
        position, _ = self.finder().locate(offset)
        file = self.file()
        for at, header in walk_headers(file, position, self.size_bytes):
            yield header, marker_at(file, at, header) if header.is_control else None

    def note_marker(self, header: BatchHeader, marker: TransactionMarker) -> None:
        """A transaction marker was appended."""
        self.load_index().note_marker(header, marker)

    @property
    def knows_aborted(self) -> bool:
        """Whether `find_aborted` does not wait for the disk."""
        index = self._index
        return index is not None and index.knows_aborted

    def find_aborted(
        self, start_offset: int, end_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Aborted transactions in this range that a marker here ends; whether that is all of them.

        May wait for the disk. Raises as `search` does.
        """
        if self.is_closed:
            self._files.use_index(self)
        return self.search(
            lambda: self.load_index().find_aborted(self.file(), start_offset, end_offset)
        )

    def finder(self, source: Source | None = None) -> BatchFinder:
        """Searches the segment as it is now, in its file or a view. May wait for the disk."""
        return BatchFinder(
            source or self.file(),
            self.load_index(),
            size_bytes=self.size_bytes,
            next_offset=self.next_offset,
        )

    # --- cutting and deleting --------------------------------------------------------------------

    def keep_head(self, *, size_bytes: int, next_offset: int, index: SegmentIndex) -> None:
        """Readers find no more than the first `size_bytes`; the file is cut next."""
        self._index = index
        self._tail_positions = {}
        self._written_from = min(self._written_from, size_bytes)
        self._verified_bytes = min(self._verified_bytes, size_bytes)
        self.size_bytes = size_bytes
        self.promised_bytes = min(self.promised_bytes, size_bytes)
        self.next_offset = next_offset

    def head_is_durable(self, copy: DiskFile | None) -> None:
        """The file was cut, or `copy` took its name."""
        self.dirty_file = None
        self._has_partial_write = False
        if copy is not None:
            self._files.put(self.path, copy)
            self.may_have_views = False

    def rename(self, suffix: str) -> str:
        """Take the segment out of the log by renaming its file; the new path."""
        unlink_index_files(self._disk, self.directory, self.base_offset)
        self._disk.rename(self.path, self.path + suffix)
        self.forget()
        return self.path + suffix

    def forget(self) -> None:
        """Keep nothing open."""
        self.dirty_file = None
        self._files.drop(self.path)
        self._files.forget_index(self)


def _range_search(offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> _Search:
    return partial(
        BatchFinder.find_range,
        offset=offset,
        max_bytes=max_bytes,
        end_offset=end_offset,
        at_least_one=at_least_one,
    )


def _first_batch(file: DiskFile, position: int) -> LogSlice:
    size_bytes = read_header(file.pread(HEADER_BYTES, position)).size_bytes
    return _read_slice(file, position, position + size_bytes)


def _read_slice(file: DiskFile, start: int, stop: int) -> LogSlice:
    size = stop - start
    data = file.pread(size, start) if size else b""
    if len(data) != size:
        raise StorageFault(f"{file.path}: {len(data)} of {size} bytes at {start}")
    return LogSlice((data,) if size else (), size)
