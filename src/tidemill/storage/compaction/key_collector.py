"""The first pass of a cleaning: reads the dirty part of a log and notes its keys; for threads.

Compiled code notes plain batches, many per call (`hot.record_sift`), a few kilobytes per call, so
that the event loop gets the interpreter in between. Batches that are compressed or belong to a
transaction are opened here, one by one; aborted records replace nothing. Every byte is checked: a
damaged segment is not cleaned.
"""

from __future__ import annotations

from typing import final

from crc32c import crc32c

from tidemill.core.limits import MIB
from tidemill.hot.key_offsets import SLOT_BYTES, KeyOffsets
from tidemill.hot.record_sift import FULL, OTHER, note_batches, note_records
from tidemill.storage.compaction.batch_window import SLICE_BYTES, read_window
from tidemill.storage.compaction.transactions_left import FindAborted, TransactionOutcomes
from tidemill.storage.files.disk import DiskFile
from tidemill.storage.log.segment import Segment
from tidemill.wire.batch import BatchHeader, CorruptBatch, read_header, records_section
from tidemill.wire.marks import is_marked

__all__ = ["KeyCollector"]


@final
class KeyCollector:
    """Notes the keys of one segment after the other."""

    def __init__(
        self, *, slot_count: int, secret: int, from_offset: int, find_aborted: FindAborted
    ) -> None:
        self._find_aborted = find_aborted
        self._outcomes: TransactionOutcomes | None = None
        self._slot_count = slot_count
        self._secret = secret
        self._from_offset = from_offset
        self.keys: KeyOffsets
        self.noted_from = -1
        """Base offset of the first batch that was looked at."""
        self.next_offset = -1
        """Everything below it is noted."""
        self.is_full = False
        self.position = 0
        self._segment: Segment | None = None
        self._file: DiskFile | None = None

    def allocate(self) -> None:
        """Make the table piece by piece: zeroing it at once would hold the interpreter lock."""
        room, size_bytes = bytearray(), SLOT_BYTES * self._slot_count
        while len(room) < size_bytes:
            room += bytes(min(MIB, size_bytes - len(room)))
        self.keys = KeyOffsets(room, self._secret)

    @property
    def has_more(self) -> bool:
        """Whether the segment has more bytes."""
        return self._segment is not None and self.position < self._segment.size_bytes

    def enter(self, segment: Segment) -> None:
        """Continue with this segment."""
        offset = self._from_offset
        self._segment, self._file = segment, segment.file()
        self._outcomes = TransactionOutcomes(self._find_aborted, segment)
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
        stop = min(self.position + SLICE_BYTES, self._segment.size_bytes)
        while self.position < stop and not self.is_full:
            view = read_window(self._file, self.position, self._segment.size_bytes)
            try:
                self.position += self._note(view)
            except ValueError as err:
                raise CorruptBatch(f"{self._segment.path}: {err}") from None
        if not self.has_more and not self.is_full:
            self.next_offset = self._segment.next_offset

    def _note(self, view: memoryview) -> int:
        """Note the keys of a window's whole batches; the size of these batches."""
        at, outcome = 0, OTHER
        while outcome == OTHER:
            at, self.next_offset, outcome = note_batches(
                self.keys, view, at, len(view), self.next_offset, self._from_offset, crc32c
            )
            if outcome == OTHER:
                header = read_header(view, at)
                full_at = self._note_one(view[at:], header)
                self.next_offset = header.next_offset if full_at < 0 else full_at
                outcome = OTHER if full_at < 0 else FULL
                at += header.size_bytes
        self.is_full = outcome == FULL
        return at

    def _note_one(self, view: memoryview, header: BatchHeader) -> int:
        assert self._outcomes is not None
        if header.is_control or is_marked(header) or self._outcomes.is_aborted(header):
            return -1
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
