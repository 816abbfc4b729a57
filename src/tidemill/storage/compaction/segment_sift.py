"""The two passes of a cleaning over the bytes of segments, slice by slice; for threads.

`KeyNotes` reads the dirty part and notes keys. `SegmentSift` reads neighbouring segments and writes
what survives beside them. Plain batches are dealt with in compiled code, many per call
(`hot.record_sift`), each call a few kilobytes, so that the event loop gets the interpreter in
between; what is compressed, partly superseded or gets a delete horizon is opened here, batch by
batch. Every byte is checked on the way: a damaged segment is not cleaned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from crc32c import crc32c

from tidemill.core.errors import StorageFault
from tidemill.core.limits import MIB
from tidemill.hot.key_offsets import SLOT_BYTES, KeyOffsets
from tidemill.hot.record_sift import (
    FULL,
    OTHER,
    Sift,
    note_batches,
    note_records,
    sift_batches,
    sift_records,
)
from tidemill.storage.files.disk import Buffer, Disk, DiskFile
from tidemill.storage.files.log_file_names import CLEANED_SUFFIX
from tidemill.storage.index.segment_index import SegmentIndex, index_paths
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment
from tidemill.storage.log.segment_swap import open_cleaned
from tidemill.wire.batch import (
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    read_header,
    rebuild,
    records_section,
)

__all__ = ["KeyNotes", "SegmentSift"]

_SLICE_BYTES = MIB
_WINDOW_BYTES = 64 * 1024
_TIME_MAX = 2**63 - 1
_SHIFT_BYTES_MAX = 16
"""What a record can grow by when its timestamp counts from elsewhere."""


def _window(file: DiskFile, position: int, end: int) -> memoryview:
    """The next bytes of a segment, whole batches at their beginning; CorruptBatch if there is none.

    A read that fails is damage of this segment, not of the whole disk.
    """
    try:
        data = file.pread(min(_WINDOW_BYTES, end - position), position)
        size_bytes = read_header(data).size_bytes
        if size_bytes > len(data):
            data = file.pread(min(size_bytes, end - position), position)
    except StorageFault as err:
        raise CorruptBatch(str(err)) from err
    if size_bytes > len(data):
        raise CorruptBatch(f"{len(data)} bytes of {size_bytes} at byte {position}")
    return memoryview(data)


@final
class KeyNotes:
    """Notes the keys of one segment after the other."""

    def __init__(self, *, slot_count: int, secret: int, from_offset: int) -> None:
        self._slot_count = slot_count
        self._secret = secret
        self._from_offset = from_offset
        self.keys: KeyOffsets
        self.noted_from = -1
        """Where the first batch begins that was looked at."""
        self.next_offset = -1
        """All below it is noted."""
        self.is_full = False
        self.position = 0
        self._segment: Segment | None = None
        self._file: DiskFile | None = None

    def allocate(self) -> None:
        """Make the table, piece by piece: zeroing it at once would stop everybody else."""
        room, size_bytes = bytearray(), SLOT_BYTES * self._slot_count
        while len(room) < size_bytes:
            room += bytes(min(MIB, size_bytes - len(room)))
        self.keys = KeyOffsets(room, self._secret)

    @property
    def is_inside(self) -> bool:
        """Whether the segment has more."""
        return self._segment is not None and self.position < self._segment.size_bytes

    def enter(self, segment: Segment) -> None:
        """Go on with this segment."""
        offset = self._from_offset
        self._segment, self._file = segment, segment.file()
        self.position, header = segment.finder().locate(offset)
        if self.noted_from < 0:
            self.noted_from = offset if header is None else min(offset, header.base_offset)
            self.next_offset = self.noted_from
        if header is None:
            self.next_offset = segment.next_offset

    def run_slice(self) -> None:
        """Note about a megabyte."""
        assert self._segment is not None
        assert self._file is not None
        stop = min(self.position + _SLICE_BYTES, self._segment.size_bytes)
        while self.position < stop and not self.is_full:
            view = _window(self._file, self.position, self._segment.size_bytes)
            try:
                self.position += self._note(view)
            except ValueError as err:
                raise CorruptBatch(f"{self._segment.path}: {err}") from None
        if not self.is_inside and not self.is_full:
            self.next_offset = self._segment.next_offset

    def _note(self, view: memoryview) -> int:
        """Note the whole batches of a window; how many bytes they are."""
        at, outcome = 0, OTHER
        while outcome == OTHER:
            at, self.next_offset, outcome = note_batches(
                self.keys, view, at, len(view), self.next_offset, self._from_offset, crc32c
            )
            if outcome == OTHER:
                header = read_header(view, at)
                full_at = self._note_compressed(view[at:], header)
                self.next_offset = header.next_offset if full_at < 0 else full_at
                outcome = OTHER if full_at < 0 else FULL
                at += header.size_bytes
        self.is_full = outcome == FULL
        return at

    def _note_compressed(self, view: memoryview, header: BatchHeader) -> int:
        section = records_section(view, header)
        return note_records(
            self.keys,
            section,
            0,
            len(section),
            header.record_count,
            header.base_offset,
            self._from_offset,
        )


@final
class SegmentSift:
    """Writes what stays of neighbouring segments into one new file."""

    def __init__(
        self,
        disk: Disk,
        sift: Sift,
        sources: Sequence[Segment],
        *,
        kept: frozenset[int],
        index_interval_bytes: int,
        delete_retention_ms: int,
    ) -> None:
        self._disk = disk
        self._sift = sift
        self._sources = sources
        self._place = 0
        self._position = 0
        self._source_file: DiskFile | None = None
        self._index_interval_bytes = index_interval_bytes
        self._horizon_ms = min(sift.now_ms + delete_retention_ms, _TIME_MAX)
        first = sources[0]
        self._path = first.path
        self._index = SegmentIndex.empty(first.base_offset, interval_bytes=index_interval_bytes)
        self._file = open_cleaned(disk, first.path)
        self._index_files = [
            open_cleaned(disk, path) for path in index_paths(first.directory, first.base_offset)
        ]
        self._kept = kept
        self.is_placed = False
        """Readers have got the new segment."""
        self.size_bytes = 0
        """Written so far."""
        self.slice_bytes = 0
        """Read by the latest slice."""
        self.has_changed = False
        self.records_dropped = 0
        sift.next_offset = first.base_offset
        sift.kept = kept

    @property
    def is_done(self) -> bool:
        return self._place == len(self._sources)

    def run_slice(self) -> None:
        """Read about a megabyte and write what stays of it."""
        self.slice_bytes = 0
        dropped = self._sift.records_dropped
        while not self.is_done and self.slice_bytes < _SLICE_BYTES:
            segment = self._sources[self._place]
            if self._position >= segment.size_bytes:
                self._place, self._position, self._source_file = self._place + 1, 0, None
                continue
            try:
                self._run_window(segment)
            except ValueError as err:
                raise CorruptBatch(f"{segment.path}: {err}") from None
        self.records_dropped += self._sift.records_dropped - dropped

    def _run_window(self, segment: Segment) -> None:
        if self._source_file is None:
            self._source_file = segment.file()
            self._keep_last_batch(segment)
        view = _window(self._source_file, self._position, segment.size_bytes)
        chunks, at = self._sifted(view)
        written = sum(map(len, chunks))
        if chunks:
            self._file.pwrite(chunks, self.size_bytes - written)
        self.has_changed = self.has_changed or written != at
        self._position += at
        self.slice_bytes += at

    def _keep_last_batch(self, segment: Segment) -> None:
        """The new segment must end where its last source did: segments follow without a gap."""
        if segment is self._sources[-1]:
            _, header = segment.finder().locate(segment.next_offset - 1)
            last = () if header is None else (header.base_offset,)
            self._sift.kept = self._kept.union(last)

    def _sifted(self, view: memoryview) -> tuple[list[Buffer], int]:
        """What stays of the whole batches of a window, and how many bytes they were."""
        sift, out, out_at, at = self._sift, bytearray(len(view)), 0, 0
        chunks: list[Buffer] = []
        end = len(view)
        while True:
            stop = at + self._index_interval_bytes
            started_at, copied_from = at, out_at
            at, out_at, outcome = sift_batches(sift, view, at, end, stop, out, out_at, crc32c)
            if out_at > copied_from:
                self._note(sift.copied_offset, sift.copied_timestamp, out_at - copied_from)
                chunks.append(memoryview(out)[copied_from:out_at])
            if outcome == OTHER:
                header = read_header(view, at)
                made = self._remade(view[at : at + header.size_bytes], header)
                if made is not None:
                    made_header = read_header(made)
                    self._note(header.base_offset, made_header.max_timestamp, len(made))
                    chunks.append(made)
                sift.next_offset = header.next_offset
                at += header.size_bytes
            elif at == started_at:
                return chunks, at

    def _note(self, base_offset: int, max_timestamp: int, size_bytes: int) -> None:
        self._index.note(base_offset, max_timestamp, self.size_bytes)
        self.size_bytes += size_bytes

    def _remade(self, view: memoryview, header: BatchHeader) -> Buffer | None:
        """What becomes of a batch that is not simply copied or dropped; None: it goes."""
        section, count = records_section(view, header), header.record_count
        room = bytearray(len(section) + _SHIFT_BYTES_MAX * count)
        horizon_ms = header.delete_horizon_ms
        is_expired = horizon_ms is not None and horizon_ms <= self._sift.now_ms
        stayed, size, highest, marks = sift_records(
            self._sift, section, 0, len(section), count, header.base_offset, is_expired, 0, room
        )
        needs_horizon = (
            marks > 0 and horizon_ms is None and header.base_offset >= self._sift.noted_from
        )
        if stayed == count and not needs_horizon:
            return view
        self.has_changed = True
        self._sift.records_dropped += count - stayed
        if not stayed:
            return self._emptied(header)
        max_timestamp = header.max_timestamp
        if header.timestamp_type == "create":
            max_timestamp = header.base_timestamp + highest
        if needs_horizon:
            horizon_ms = self._horizon_ms
            shift = header.base_timestamp - horizon_ms
            _, size, _, _ = sift_records(
                self._sift, section, 0, len(section), count, header.base_offset, False, shift, room
            )
        return rebuild(
            header,
            memoryview(room)[:size],
            record_count=stayed,
            max_timestamp=max_timestamp,
            delete_horizon_ms=horizon_ms,
        )

    def _emptied(self, header: BatchHeader) -> Buffer | None:
        if header.base_offset not in self._sift.kept:
            return None
        return rebuild(
            header, b"", record_count=0, max_timestamp=NO_TIMESTAMP, delete_horizon_ms=None
        )

    # --- when all is written ----------------------------------------------------------------------

    def sync(self) -> None:
        """Make the new segment durable. Its index need not be."""
        self._file.sync()
        paths = index_paths(self._sources[0].directory, self._sources[0].base_offset)
        files = dict(zip(paths, self._index_files, strict=True))
        for path, position, block in self._index.take_blocks(self._sources[0].directory):
            files[path].pwrite([block], position)

    def pin_sources(self) -> None:
        for segment in self._sources:
            segment.pin()

    def take_segment(self, log: FilePartitionLog) -> Segment:
        """The new segment, for `log.begin_swap`."""
        segment = log.adopt_segment(
            base_offset=self._sources[0].base_offset,
            next_offset=self._sources[-1].next_offset,
            index=self._index,
            index_interval_bytes=self._index_interval_bytes,
            file=self._file,
            size_bytes=self.size_bytes,
        )
        segment.untimed_ms = max(source.untimed_ms for source in self._sources)
        return segment

    def discard(self) -> None:
        """It is over: what was not put in place goes."""
        if self.is_placed:
            return
        for segment in self._sources:
            segment.unpin()
        for path in (
            self._path,
            *index_paths(self._sources[0].directory, self._sources[0].base_offset),
        ):
            self._disk.unlink(path + CLEANED_SUFFIX)
