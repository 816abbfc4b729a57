"""The second pass of a cleaning: writes what survives of neighbouring segments; for threads.

Compiled code copies or drops plain batches, many per call (`hot.record_sift`), a few kilobytes per
call, so that the event loop gets the interpreter in between. Batches that are compressed, partly
superseded, get a delete horizon or belong to a transaction are opened here, one by one. Every byte
is checked: a damaged segment is not cleaned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from crc32c import crc32c

from tidemill.hot.record_sift import OTHER, Sift, sift_batches, sift_records
from tidemill.storage.compaction.batch_window import SLICE_BYTES, read_window
from tidemill.storage.compaction.transactions_left import (
    FindAborted,
    TransactionOutcomes,
    TransactionsLeft,
)
from tidemill.storage.files.disk import Buffer, Disk, DiskFile
from tidemill.storage.log.segment import Segment
from tidemill.storage.rewriting.new_segment import NewSegment
from tidemill.wire.batch import (
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    read_header,
    rebuild,
    records_section,
)
from tidemill.wire.marks import is_marked
from tidemill.wire.transaction_marker import read_marker, with_horizon

__all__ = ["SegmentRewriter"]

_TIME_MAX = 2**63 - 1
_SHIFT_BYTES_MAX = 16
"""How much a record can grow when its timestamp is relative to another base."""


@final
class SegmentRewriter:
    """Writes the surviving records of neighbouring segments to one new file."""

    def __init__(
        self,
        disk: Disk,
        sift: Sift,
        sources: Sequence[Segment],
        *,
        kept: frozenset[int],
        left: TransactionsLeft,
        find_aborted: FindAborted,
        index_interval_bytes: int,
        delete_retention_ms: int,
    ) -> None:
        """`left` is shared by all passes of one cleaning."""
        self._left = left
        self._find_aborted = find_aborted
        self._outcomes: TransactionOutcomes | None = None
        self._sift = sift
        self._sources = sources
        self._place = 0
        self._position = 0
        self._source_file: DiskFile | None = None
        self._index_interval_bytes = index_interval_bytes
        self._horizon_ms = min(sift.now_ms + delete_retention_ms, _TIME_MAX)
        self.new = NewSegment(disk, sources, index_interval_bytes=index_interval_bytes)
        self._kept = kept
        self.slice_bytes = 0
        """Read by the latest slice."""
        self.has_changed = False
        self.records_dropped = 0
        sift.next_offset = sources[0].base_offset
        sift.kept = kept

    @property
    def is_done(self) -> bool:
        return self._place == len(self._sources)

    def run_slice(self) -> None:
        """Read about a megabyte and write what survives."""
        self.slice_bytes = 0
        dropped = self._sift.records_dropped
        while not self.is_done and self.slice_bytes < SLICE_BYTES:
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
            self._outcomes = TransactionOutcomes(self._find_aborted, segment)
            self._keep_last_batch(segment)
        view = read_window(self._source_file, self._position, segment.size_bytes)
        chunks, at = self._sifted(view)
        written = self.new.write(chunks)
        self.has_changed = self.has_changed or written != at
        self._position += at
        self.slice_bytes += at

    def _keep_last_batch(self, segment: Segment) -> None:
        """The new segment must end where its last source ends: segments follow without a gap."""
        if segment is self._sources[-1]:
            _, header = segment.finder().locate(segment.next_offset - 1)
            last = () if header is None else (header.base_offset,)
            self._sift.kept = self._kept.union(last)

    def _sifted(self, view: memoryview) -> tuple[list[Buffer], int]:
        """What survives of a window's whole batches, and the size that these had."""
        sift, out, out_at, at = self._sift, bytearray(len(view)), 0, 0
        chunks: list[Buffer] = []
        end = len(view)
        while True:
            stop = at + self._index_interval_bytes
            started_at, copied_from = at, out_at
            at, out_at, outcome = sift_batches(sift, view, at, end, stop, out, out_at, crc32c)
            if out_at > copied_from:
                self.new.note(sift.copied_offset, sift.copied_timestamp, out_at - copied_from)
                chunks.append(memoryview(out)[copied_from:out_at])
            if outcome == OTHER:
                header = read_header(view, at)
                made = self._one(view[at : at + header.size_bytes], header)
                if made is not None:
                    made_header = read_header(made)
                    self.new.note(header.base_offset, made_header.max_timestamp, len(made))
                    chunks.append(made)
                sift.next_offset = header.next_offset
                at += header.size_bytes
            elif at == started_at:
                return chunks, at

    def _one(self, view: memoryview, header: BatchHeader) -> Buffer | None:
        """A batch that is not simply copied; None if it is dropped."""
        assert self._outcomes is not None
        if header.is_control:
            return self._marker(view, header)
        if is_marked(header):  # its records are held, or say which ones are not any more
            self._left.note(header)
            return view
        if self._outcomes.is_aborted(header) and header.record_count:
            self.has_changed = True
            self._sift.records_dropped += header.record_count
            made = self._emptied(header)
        else:
            made = self._remade(view, header)
        if made is not None:
            self._left.note(header)
        return made

    def _marker(self, view: memoryview, header: BatchHeader) -> Buffer | None:
        """A transaction marker. One that a replay needs stays as it is."""
        made: Buffer | None = view
        if not self._left.end(header) and not self._is_kept(header):
            horizon_ms = header.delete_horizon_ms
            if horizon_ms is None:
                made = with_horizon(view, header, self._horizon_ms)
                self.has_changed = True
            elif horizon_ms <= self._sift.now_ms:
                made = None
                self.has_changed = True
                self._sift.records_dropped += header.record_count
        if made is not None:
            self.new.index.note_marker(header, read_marker(view, header))
        return made

    def _remade(self, view: memoryview, header: BatchHeader) -> Buffer | None:
        """A batch that is neither simply copied nor dropped; None if it is dropped after all."""
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
        if stayed == count and not needs_horizon and (count or self._is_kept(header)):
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

    def _is_kept(self, header: BatchHeader) -> bool:
        return header.base_offset in self._sift.kept

    def _emptied(self, header: BatchHeader) -> Buffer | None:
        if not self._is_kept(header):
            return None
        return rebuild(
            header, b"", record_count=0, max_timestamp=NO_TIMESTAMP, delete_horizon_ms=None
        )
