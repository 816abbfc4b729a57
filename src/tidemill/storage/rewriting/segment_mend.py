"""Writes a damaged segment anew: its valid batches, and those of another replica for the rest.

    run_slice    copies valid batches, up to a hole or the end; for threads
    hole         the offsets that are missing, and what must come after them
    take         checks batches of another replica and writes them into the hole; for threads

A batch is identified by its offset and its leader epoch, and this log knows which epoch wrote which
offset. Two logs that share one batch share all before it (I10), so the other replica must also show
the batch that follows the hole here, if there is one: epochs may have been rebuilt from damage.

Batches that look valid inside damage may be the content of a record. If the other replica does not
know the one that follows the hole, a second attempt takes everything up to the segment's end
(`takes_rest`).

Where logs are compacted, replicas differ in what they have dropped, and a log that mixes both may
bring back a deleted key. So all segments are taken over whole, one after the other (`takes_all`).
The batch that follows may be gone there; what is taken must be of the epochs that this log knows.

Offsets follow each other without gaps, unless compaction made some, and a segment ends where the
next one begins. A log can have gaps and not know it: it was copied from one that was compacted, and
its topic no longer is. But damage leaves bytes, so a gap without any between two batches is none
(`shows_gaps`). Where another replica is believed that has a gap, a batch without records fills it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from tidemill.core.errors import StorageFault
from tidemill.core.limits import MIB
from tidemill.storage.files.disk import Buffer, Disk
from tidemill.storage.files.log_file_names import LOST_SUFFIX, offset_path
from tidemill.storage.log.segment import Segment
from tidemill.storage.recovery.checked_scan import CheckedScan, FoundBatch, try_find_batch_after
from tidemill.storage.rewriting.new_segment import NewSegment
from tidemill.storage.state.log_damage import DamagedRange
from tidemill.wire.batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    iter_headers,
    read_header,
    verify,
)
from tidemill.wire.records import empty_batch
from tidemill.wire.transaction_marker import read_marker

__all__ = ["EpochAt", "FollowingHeader", "Hole", "SegmentMend", "WrongBatches", "first_header"]

SLICE_BYTES = MIB
_UNKNOWN_EPOCH = -2

EpochAt = Callable[[int], int | None]
"""Which leader epoch wrote an offset, as this log knows it; None: it does not."""
FollowingHeader = Callable[[], BatchHeader | None]
"""The first batch after the segment; None while there is none. May wait for the disk."""
_OwnBatch = tuple[BatchHeader, Buffer]
"""Its header; and its bytes, if it is a transaction's marker."""


class WrongBatches(Exception):
    """What another replica has does not fit: its log is another one, or lacks the same."""


@final
@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets of which the segment has no valid batch."""

    range: DamagedRange
    size_bytes: int
    """Of the invalid bytes; 0: the batches are gone without a trace."""
    next_batch: BatchHeader | None
    """The valid batch after it, here; None: the log has none yet."""


@final
class SegmentMend:
    """One attempt to mend one closed segment."""

    def __init__(
        self,
        disk: Disk,
        segment: Segment,
        *,
        index_interval_bytes: int,
        following: FollowingHeader,
        epoch_at: EpochAt,
        start_offset: int = 0,
        has_gaps: bool = False,
        takes_rest: bool = False,
        takes_all: bool = False,
    ) -> None:
        """`start_offset`: nobody needs what is below; `has_gaps`: compaction may have made some."""
        self._disk = disk
        self._segment = segment
        self._following = following
        self._epoch_at = epoch_at
        self._start_offset = start_offset
        self._has_gaps = has_gaps
        self._takes_rest = takes_rest
        self._takes_all = takes_all
        self._resume: FoundBatch | None = None
        """Where the valid batches go on after the hole, in this segment."""
        self._file = segment.file()
        self._scan = CheckedScan(
            self._file,
            position=0,
            end=segment.size_bytes,
            next_offset=segment.base_offset,
            check=self._check_own,
        )
        self.new = NewSegment(disk, [segment], index_interval_bytes=index_interval_bytes)
        self.hole: Hole | None = None
        """To be filled by `take` before the next slice."""
        self.holes: list[Hole] = []
        """All that were found so far."""
        self._kept: Hole | None = None
        """The last hole whose damaged bytes are in a file."""
        self.next_offset = segment.base_offset
        """Of the batch to be written next; where to ask for batches while there is a hole."""
        self._epoch = -1
        self.is_done = False
        self.shows_gaps = False
        """Two valid batches follow each other in the file, and their offsets do not."""

    # --- valid batches ----------------------------------------------------------------------------

    def run_slice(self) -> None:
        """Copy about a megabyte; stop at a hole, or at the end."""
        assert self.hole is None, "a hole is filled first"
        if self._takes_all:
            self._open_hole(None)
            return
        if not self._copy_some():
            self._open_hole(None)  # nothing after sectors that cannot be read counts
        elif self._scan.damage is not None:
            self._open_hole(None if self._takes_rest else self._try_resume())
        elif self._scan.position >= self._segment.size_bytes:
            self._finish()

    def _check_own(self, header: BatchHeader, next_offset: int) -> None:
        """What the log knows of its batches besides their checksums."""
        if header.next_offset > self._segment.next_offset:
            raise CorruptBatch(f"offset {header.last_offset} is not of this segment")
        if header.base_offset > next_offset and not self._has_gaps:
            raise CorruptBatch(f"offset {header.base_offset} where {next_offset} is the next")
        known = self._known_epoch(header)
        if known is not None and known != header.partition_leader_epoch:
            raise CorruptBatch(f"leader epoch {header.partition_leader_epoch} instead of {known}")

    def _known_epoch(self, header: BatchHeader) -> int | None:
        """All of a batch is of one epoch; its first offset may be below the log start."""
        return self._epoch_at(header.last_offset)

    def _copy_some(self) -> bool:
        """False if what follows cannot be read. A fault of the new file is raised."""
        batches, data, is_readable = self._read_some()
        for header, marker in batches:
            self._note(header, marker)
        self.new.write([data])
        return is_readable

    def _read_some(self) -> tuple[list[_OwnBatch], Buffer, bool]:
        """Valid batches and their bytes; whether the next ones can be read."""
        start = end = self._scan.position
        batches: list[_OwnBatch] = []
        is_readable = True
        try:
            for found in self._scan:
                batches.append((found.header, self._read_marker(found)))
                end = self._scan.position
                if end - start >= SLICE_BYTES:
                    break
        except (CorruptBatch, StorageFault):
            is_readable = False
        try:
            data = self._file.pread(end - start, start)
        except StorageFault:
            batches, data, end, is_readable = [], b"", start, False
        self._scan.position = end
        return batches, data, is_readable

    def _read_marker(self, found: FoundBatch) -> Buffer:
        """The bytes of a transaction's marker; none of another batch. Raises CorruptBatch."""
        header = found.header
        if not header.is_control:
            return b""
        marker = self._file.pread(header.size_bytes, found.position)
        read_marker(memoryview(marker), header)
        return marker

    def _note(self, header: BatchHeader, batch: Buffer) -> None:
        """`batch`: its bytes, needed of a transaction's marker."""
        self.new.note(header.base_offset, header.max_timestamp, header.size_bytes)
        if header.is_control:
            self.new.index.note_marker(header, read_marker(memoryview(batch), header))
        self.next_offset = header.next_offset
        self._epoch = header.partition_leader_epoch

    def _finish(self) -> None:
        if self.next_offset < self._segment.next_offset:
            self._open_hole(None)  # the file ends too early
        else:
            self.is_done = True

    # --- the hole ---------------------------------------------------------------------------------

    def _try_resume(self) -> FoundBatch | None:
        found = self._try_find_after(self._scan.position)
        while found is not None and not self._is_followed(found):
            found = self._try_find_after(found.position + 1)
        return found

    def _try_find_after(self, position: int) -> FoundBatch | None:
        return try_find_batch_after(
            self._file,
            position=position,
            end=self._segment.size_bytes,
            next_offset=self._scan.next_offset,
            accepts=self._could_be_own,
        )

    def _is_followed(self, found: FoundBatch) -> bool:
        """Whether its base offset is right, which is under no checksum: the next batch tells."""
        after = self._try_find_after(found.position + found.header.size_bytes)
        if after is None or self._has_gaps:
            return True
        return after.header.base_offset >= found.header.next_offset

    def _could_be_own(self, header: BatchHeader) -> bool:
        try:
            self._check_own(header, header.base_offset)
        except CorruptBatch:
            return False
        return True

    def _open_hole(self, resume: FoundBatch | None) -> None:
        self._resume = resume
        if resume is None:
            end_offset, end = self._segment.next_offset, self._segment.size_bytes
            next_batch = self._following()
        else:
            end_offset, end, next_batch = resume.header.base_offset, resume.position, resume.header
            self.shows_gaps = self.shows_gaps or end == self._scan.position
        missing = DamagedRange(self.next_offset, end_offset)
        self.hole = Hole(missing, end - self._scan.position, next_batch)
        self.holes.append(self.hole)
        if missing.start_offset == missing.end_offset:  # bytes between two batches: none is lost
            self._go_on(missing.end_offset)

    def skip_hole(self) -> None:
        """Look at what comes after it; the new segment is of no use then."""
        assert self.hole is not None
        self._go_on(self.hole.range.end_offset)

    def fill_with_nothing(self, end_offset: int) -> None:
        """Put a batch without records where nobody has what comes next, up to here; for threads.

        The damaged bytes are kept in a file: a tool, or another machine, may read more of them.
        """
        hole = self.hole
        assert hole is not None
        if self._kept is not hole and not self._takes_all:
            self._keep_damaged(hole)
            self._kept = hole
        self.new.write([self._fill_up_to(end_offset)])
        if self.next_offset == hole.range.end_offset:
            self._go_on(self.next_offset)

    def close_hole(self) -> None:
        """All of it is there; nobody can show the batch that follows."""
        assert self.hole is not None
        self._go_on(self.hole.range.end_offset)

    def pass_over(self, end_offset: int) -> None:
        """Both logs have lost what comes next, up to here; for threads."""
        hole = self.hole
        assert hole is not None
        if self.next_offset == hole.range.end_offset:  # what both lack follows the hole
            self._go_on(self.next_offset)
            return
        end_offset = min(end_offset, hole.range.end_offset)
        self.new.write([self._fill_up_to(end_offset)])
        if hole.next_batch is None and end_offset == hole.range.end_offset:
            self._go_on(end_offset)

    def _keep_damaged(self, hole: Hole) -> None:
        if not hole.size_bytes:
            return
        directory = self._segment.path.rpartition("/")[0]
        path = offset_path(directory, hole.range.start_offset, LOST_SUFFIX)
        kept = self._disk.open(path, create=True)
        try:
            for done in range(0, hole.size_bytes, SLICE_BYTES):
                size = min(SLICE_BYTES, hole.size_bytes - done)
                kept.pwrite([self._read_damaged(size, self._scan.position + done)], done)
            kept.sync()
        finally:
            kept.close()

    def _read_damaged(self, size: int, position: int) -> bytes:
        """Zeros, if the sectors cannot be read."""
        try:
            return self._file.pread(size, position)
        except StorageFault:
            return bytes(size)

    def take(self, records: Buffer, *, may_have_gaps: bool) -> None:
        """Write batches of another replica, up to the one that must follow. Raises WrongBatches.

        `may_have_gaps`: the other replica is believed, whatever it lacks.
        """
        hole = self.hole
        assert hole is not None
        view, before = memoryview(records), self.next_offset
        chunks: list[Buffer] = []
        try:
            for position, header in iter_headers(view):
                batch = view[position : position + header.size_bytes]
                verify(batch, header)
                if header.base_offset >= hole.range.end_offset:
                    self._check_next(hole, header)
                    chunks += self._close_hole(hole, may_have_gaps=may_have_gaps)
                    break
                self._check(header, hole, may_have_gaps=may_have_gaps)
                if header.base_offset > self.next_offset and not self._has_gaps:
                    chunks.append(self._fill_up_to(header.base_offset))
                self._note(header, batch)
                chunks.append(batch)
        except CorruptBatch as error:
            raise WrongBatches(error.detail) from error
        if hole.next_batch is None and self.next_offset == hole.range.end_offset:
            self._go_on(self.next_offset)
        if self.hole is not None and self.next_offset == before:
            raise WrongBatches("no whole batch came")
        self.new.write(chunks)

    def _check(self, header: BatchHeader, hole: Hole, *, may_have_gaps: bool) -> None:
        follows = header.base_offset == self.next_offset
        may_skip = may_have_gaps or header.base_offset <= self._start_offset
        if not follows and not (may_skip and header.base_offset > self.next_offset):
            raise WrongBatches(f"offset {header.base_offset} where {self.next_offset} is missing")
        if header.next_offset > hole.range.end_offset:
            raise WrongBatches(f"the batch at {header.base_offset} reaches beyond the damage")
        if header.partition_leader_epoch < self._epoch:
            raise WrongBatches(f"leader epoch {header.partition_leader_epoch} after {self._epoch}")
        self._check_epoch(header)

    def _check_next(self, hole: Hole, header: BatchHeader) -> None:
        """Whether the other log is this one: both have the batch after the hole."""
        self._check_epoch(header)
        if self._takes_all:
            return
        expected = hole.next_batch
        if expected is not None and (
            header.base_offset != expected.base_offset
            or header.partition_leader_epoch != expected.partition_leader_epoch
        ):
            raise WrongBatches(f"the batch at {header.base_offset} is not the one that follows")

    def _check_epoch(self, header: BatchHeader) -> None:
        epoch, known = header.partition_leader_epoch, self._known_epoch(header)
        if known is not None and known != epoch:
            raise WrongBatches(f"offset {header.base_offset} is not of leader epoch {epoch}")

    def _close_hole(self, hole: Hole, *, may_have_gaps: bool) -> list[Buffer]:
        """Returns what is still to be written: a batch that closes a gap, or nothing."""
        end_offset = hole.range.end_offset
        filler: list[Buffer] = []
        if self.next_offset < end_offset:
            if not may_have_gaps and end_offset > self._start_offset:
                raise WrongBatches(f"offset {self.next_offset} is missing there too")
            if self._resume is None or not self._has_gaps:
                filler.append(self._fill_up_to(end_offset))
        self._go_on(end_offset)
        return filler

    def _fill_up_to(self, end_offset: int) -> Buffer:
        """Batches without records, so that nobody takes the gap for damage again.

        There is one for each leader epoch: a start may rebuild epochs from batches (I11).
        """
        batches = bytearray()
        while self.next_offset < end_offset:
            known = self._order_of_epoch_at(self.next_offset)
            offsets = range(self.next_offset, end_offset)
            count = bisect_right(offsets, known, key=self._order_of_epoch_at)
            epoch = max(self._epoch, 0) if known == _UNKNOWN_EPOCH else known
            out = empty_batch(self.next_offset, self.next_offset + count, leader_epoch=epoch)
            self._note(read_header(out), out)
            batches += out
        return batches

    def _order_of_epoch_at(self, offset: int) -> int:
        """What is below the log start is of no known epoch, and of an older one than the rest."""
        known = self._epoch_at(offset)
        return _UNKNOWN_EPOCH if known is None else known

    def _go_on(self, offset: int) -> None:
        self.hole, self.next_offset = None, offset
        if self._resume is None:
            self.is_done = True
        else:
            self._scan.skip_to(self._resume)


def first_header(segments: list[Segment]) -> BatchHeader | None:
    """Of the first segment that has a batch; None: none has, or it is damaged."""
    for segment in segments:
        if segment.size_bytes:
            try:
                return read_header(segment.file().pread(HEADER_BYTES, 0))
            except (CorruptBatch, StorageFault):
                return None
    return None
