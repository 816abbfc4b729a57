"""Bringing one log back: after a clean end by trusting what was written, else by looking.

Theory of operation. The *recovery point* divides a log. All below it was flushed: bytes there that
are not valid any more are damage, which is reported and never cut, because the offsets behind it
were acknowledged. Behind it nothing was promised beyond what the disk happens to hold: the log is
scanned, checksums and all, and ends at the first batch that is not valid. What is cut off is kept
in a side file. A valid batch of ours behind that place makes the partition suspect.

    |--- segments not looked at ---|--- seek by header ---|====== scan ======|~~ cut ~~|
    log start                      segment that holds the recovery point     new end

What survives is written again and synced before it counts as flushed. A sync alone would not do:
if an earlier one failed, the kernel calls pages clean that never reached the disk, and only this
process's memory of the failure knew.

Leader epochs below the recovery point come from their file, if it agrees with the batches;
producers come from the newest snapshot that is not behind the end, and a replay of what follows it.
Files that are lost, damaged or from another time are made anew from the batches.

A crash during recovery is a crash like any other: every step leaves a log from which the same
recovery comes to the same end. First the cut (see `tail_cut`), then the small files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from tidemill.core.errors import StorageFault
from tidemill.core.limits import MIB
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import (
    INDEX_SUFFIX,
    LEADER_EPOCHS_NAME,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    offset_path,
)
from tidemill.storage.index.header_walk import walk_headers
from tidemill.storage.index.offset_index import OffsetIndex
from tidemill.storage.index.segment_index import unlink_index_files
from tidemill.storage.log.partition_log import LoadedState
from tidemill.storage.recovery.checked_scan import CheckedScan, find_batch_behind
from tidemill.storage.recovery.recovery_report import Damage, PartitionReport
from tidemill.storage.recovery.segment_files import (
    SegmentFile,
    build_segments,
    find_segment_files,
    list_useful_names,
    offsets_in,
    try_read_epochs,
)
from tidemill.storage.recovery.tail_cut import TailCut
from tidemill.storage.state.clean_point import CleanPoint
from tidemill.storage.state.leader_epochs import NO_EPOCH, LeaderEpochs
from tidemill.storage.state.producer_snapshots import ProducerSnapshots
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.wire.batch import HEADER_BYTES, BatchHeader, CorruptBatch, read_header

__all__ = ["Remembered", "recover", "try_load_clean"]

_COPY_BYTES = MIB


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What the last checkpoint says about a log; nothing at all for one it does not know."""

    recovery_point: int = 0
    log_start_offset: int = 0
    size_bytes: int = 0
    """Of all segments; as the number of producers, it only counts after a clean end."""
    producers: int = 0
    is_capped: bool = False
    """The log was cut here, or begun anew, since the checkpoint: it may end earlier."""


def try_load_clean(
    disk: Disk,
    files: FileCache,
    directory: str,
    remembered: Remembered,
    *,
    index_interval_bytes: int,
) -> LoadedState | None:
    """The log as a clean end left it; None where the files do not say the same.

    Eight thousand of these make a start: nothing is opened but two small files.
    """
    names = list_useful_names(disk, directory)
    row = find_segment_files(disk, directory, names, log_end_offset=remembered.recovery_point)
    if not row or sum(found.size_bytes for found in row) != remembered.size_bytes:
        return None
    try:
        epochs = try_read_epochs(disk, directory, names)
        producers = ProducerStates()
        if remembered.producers:
            path = offset_path(directory, remembered.recovery_point, SNAPSHOT_SUFFIX)
            producers, _ = ProducerStates.decode(disk.read_file(path), name=path)
    except StorageFault:
        return None
    if len(producers) < remembered.producers or (epochs is None and remembered.size_bytes):
        return None
    epochs = LeaderEpochs() if epochs is None else epochs
    epochs.truncate_from_start(remembered.log_start_offset)
    return LoadedState(
        segments=build_segments(
            disk, files, directory, row, index_interval_bytes=index_interval_bytes
        ),
        log_start_offset=max(remembered.log_start_offset, row[0].base_offset),
        flushed_offset=remembered.recovery_point,
        epochs=epochs,
        producers=producers,
        snapshot_offsets=offsets_in(names, SNAPSHOT_SUFFIX),
    )


def recover(
    disk: Disk,
    files: FileCache,
    directory: str,
    remembered: Remembered,
    *,
    index_interval_bytes: int,
    now_ms: int,
) -> tuple[LoadedState, PartitionReport]:
    """The log as the disk still has it, made durable; and what was found on the way."""
    recovery = _Recovery(disk, files, directory, remembered, index_interval_bytes, now_ms)
    return recovery.run(), recovery.report


@final
class _Recovery:
    """One log's recovery."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        directory: str,
        remembered: Remembered,
        index_interval_bytes: int,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._now_ms = now_ms
        self._names = list_useful_names(disk, directory)
        self._row = find_segment_files(disk, directory, self._names)
        first = self._row[0].base_offset if self._row else 0
        self._recovery_point = max(remembered.recovery_point, first)
        self._is_capped = remembered.is_capped
        self._log_start_offset = max(remembered.log_start_offset, first)
        self._last_flushed: BatchHeader | None = None
        """The last batch below the recovery point that the seek saw."""
        self._tail_epochs: list[tuple[int, int]] = []
        """Leader epochs of the scanned batches, and the offset of each one's first."""
        self.report = PartitionReport()

    def run(self) -> LoadedState:
        if not self._row:
            stored = offsets_in(self._names, SNAPSHOT_SUFFIX)
            self._begin_anew(max(self._recovery_point, self._log_start_offset, *stored[-1:]))
        self._bring_back_tail(*self._seek())
        snapshots = ProducerSnapshots(
            self._disk, self._directory, offsets_in(self._names, SNAPSHOT_SUFFIX)
        )
        if snapshots.newest_offset > self._log_end_offset:
            snapshots.drop_behind(self._log_end_offset)
            self._disk.sync_directory(self._directory)
        producers = self._producers(snapshots)
        epochs = self._epochs()
        if self._log_end_offset < self._log_start_offset:
            self._begin_anew(self._log_start_offset)
        elif self.report.damage:
            self._leave_damaged_segment()
        names = self._disk.list_names(self._directory)
        return LoadedState(
            segments=build_segments(
                self._disk,
                self._files,
                self._directory,
                self._row,
                index_interval_bytes=self._index_interval_bytes,
            ),
            log_start_offset=self._log_start_offset,
            flushed_offset=self._log_end_offset,
            epochs=epochs,
            producers=producers,
            snapshot_offsets=offsets_in(names, SNAPSHOT_SUFFIX),
        )

    @property
    def _log_end_offset(self) -> int:
        return self._row[-1].next_offset

    # --- the batches ------------------------------------------------------------------------------

    def _seek(self) -> tuple[int, int]:
        """Which segment, and which byte of it, the recovery point falls on."""
        target = self._recovery_point
        place = self._place_of(target)
        piece = self._row[place]
        start, piece.next_offset = self._indexed_position(piece, target - 1)
        if piece.next_offset >= target:
            return place, start
        for position, header in self._headers(piece, start, piece.next_offset):
            if header.next_offset > target:
                piece.next_offset = header.base_offset
                return place, position
            self._last_flushed = header
            piece.next_offset = header.next_offset
            if piece.next_offset == target:
                return place, position + header.size_bytes
        if not self._is_capped:
            self._note_missing(piece)
            piece.next_offset = target
        return place, piece.size_bytes

    def _note_missing(self, piece: SegmentFile) -> None:
        """The segment ends before the recovery point; that only matters where it is readable."""
        if self._recovery_point > self._log_start_offset:
            detail = f"ends at {piece.next_offset}, but {self._recovery_point} was flushed"
            self._note_damage(piece, piece.size_bytes, piece.next_offset, detail)

    def _bring_back_tail(self, place: int, position: int) -> None:
        """Scan what was not promised, cut it at the first fault, make the rest durable."""
        first_place, first_position = place, position
        epoch = self._last_flushed.partition_leader_epoch if self._last_flushed else NO_EPOCH
        next_offset = self._row[place].next_offset
        while place < len(self._row):
            piece = self._row[place]
            if place > first_place and piece.base_offset != next_offset:
                detail = f"a segment begins at {piece.base_offset}, {next_offset} is next"
                self._cut(place, 0, next_offset, detail)
                break
            scan = CheckedScan(
                self._files.get(piece.path),
                position=position,
                end=piece.size_bytes,
                next_offset=next_offset,
                leader_epoch=epoch,
            )
            for found in scan:
                self._note_epoch(found.header)
            self.report.scanned_bytes += scan.position - position
            piece.next_offset = next_offset = scan.next_offset
            epoch = scan.leader_epoch
            if scan.damage is not None:
                self._cut(place, scan.position, next_offset, scan.damage)
                break
            place, position = place + 1, 0
        self._make_durable(first_place, first_position)

    def _note_epoch(self, header: BatchHeader) -> None:
        epoch = header.partition_leader_epoch
        if not self._tail_epochs or self._tail_epochs[-1][0] != epoch:
            self._tail_epochs.append((epoch, header.base_offset))

    def _cut(self, place: int, position: int, offset: int, detail: str) -> None:
        """The log ends before this byte of this segment."""
        cut = TailCut(
            self._disk,
            self._files,
            self._directory,
            self._row,
            place=place,
            position=position,
            offset=offset,
        )
        if cut.has_valid_batch():
            self.report.is_suspect = True
        CleanPoint(self._disk, self._directory).lower_to(offset)
        self.report.cut = cut.perform(detail)
        self._row = cut.kept

    def _make_durable(self, place: int, position: int) -> None:
        """Write the scanned bytes again and sync them, and the names of their files."""
        for piece in self._row[place:]:
            file = self._files.get(piece.path)
            for at in range(position, piece.size_bytes, _COPY_BYTES):
                file.pwrite([file.pread(min(_COPY_BYTES, piece.size_bytes - at), at)], at)
            if position < piece.size_bytes:
                file.sync()
            position = 0
        self._disk.sync_directory(self._directory)

    # --- what belongs to them ---------------------------------------------------------------------

    def _epochs(self) -> LeaderEpochs:
        """The leader epochs of what is left, stored where their file does not say the same."""
        try:
            stored = try_read_epochs(self._disk, self._directory, self._names)
        except StorageFault:
            stored = None
        epochs = None
        if stored is not None:
            epochs = self._try_extend(LeaderEpochs(stored.entries()))
        if epochs is None:
            if self._row[0].base_offset < self._recovery_point:
                self.report.rebuilt.append(LEADER_EPOCHS_NAME)
            epochs = self._epochs_from_batches()
        epochs.truncate_from_start(self._log_start_offset)
        if stored is None or stored.entries() != epochs.entries():
            path = f"{self._directory}/{LEADER_EPOCHS_NAME}"
            self._disk.write_file_atomically(path, epochs.encode())
        return epochs

    def _try_extend(self, epochs: LeaderEpochs) -> LeaderEpochs | None:
        """The stored epochs and the scanned ones, if they agree with the batches."""
        epochs.truncate_from_end(self._recovery_point)
        last = self._last_flushed
        if last is not None and epochs.epoch_at(last.base_offset) != last.partition_leader_epoch:
            return None
        for epoch, start_offset in self._tail_epochs:
            if epoch < epochs.latest:
                return None
            epochs.assign(epoch, start_offset)
        return epochs

    def _epochs_from_batches(self) -> LeaderEpochs:
        epochs = LeaderEpochs()
        for header in self._all_headers(self._row[0].base_offset):
            if header.partition_leader_epoch > epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
        return epochs

    def _producers(self, snapshots: ProducerSnapshots) -> ProducerStates:
        """From the newest snapshot on; stored where segments could now go that only it replayed."""
        found = snapshots.newest_at(self._log_end_offset)
        if found is None and snapshots.newest_offset >= 0:
            self.report.rebuilt.append("producers")
        producers, offset = found or (ProducerStates(), self._row[0].base_offset)
        for header in self._all_headers(offset):
            producers.update(header, self._now_ms)
        is_behind = self.report.scanned_bytes or offset < self._row[-1].base_offset
        if is_behind and len(producers) and offset != self._log_end_offset:
            path = offset_path(self._directory, self._log_end_offset, SNAPSHOT_SUFFIX)
            self._disk.write_file_atomically(path, producers.encode(self._log_end_offset))
        return producers

    # --- walking and noting -----------------------------------------------------------------------

    def _all_headers(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches from `offset` on."""
        place = self._place_of(offset)
        for piece in self._row[place:]:
            start = self._indexed_position(piece, offset)
            for _, header in self._headers(piece, *start):
                if header.base_offset >= offset:
                    yield header

    def _headers(
        self, piece: SegmentFile, position: int, next_offset: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch; damage is noted and skipped."""
        file = self._files.get(piece.path)
        while position < piece.size_bytes:
            try:
                for at, header in walk_headers(file, position, piece.size_bytes):
                    if header.base_offset < next_offset:
                        raise CorruptBatch(f"offset {header.base_offset} after {next_offset - 1}")
                    yield at, header
                    position, next_offset = at + header.size_bytes, header.next_offset
                return
            except CorruptBatch as error:
                detail = error.detail
            found = find_batch_behind(
                file, position=position, end=piece.size_bytes, next_offset=next_offset
            )
            resumes_at = self._recovery_point if found is None else found.header.base_offset
            if resumes_at > self._log_start_offset:
                self._note_damage(piece, position, next_offset, detail)
            if found is None:
                return
            position, next_offset = found.position, found.header.base_offset

    def _note_damage(
        self, piece: SegmentFile, position: int, next_offset: int, detail: str
    ) -> None:
        seen = {(damage.path, damage.position) for damage in self.report.damage}
        if (piece.path, position) not in seen:
            self.report.damage.append(Damage(piece.path, position, next_offset, detail))
            self.report.is_suspect = True

    def _indexed_position(self, piece: SegmentFile, offset: int) -> tuple[int, int]:
        """Where to begin looking for `offset`: a position, and the offset of the batch there."""
        beginning = 0, piece.base_offset
        path = offset_path(self._directory, piece.base_offset, INDEX_SUFFIX)
        if offset <= piece.base_offset or not self._disk.exists(path):
            return beginning
        index, _ = OffsetIndex.decode(
            self._disk.read_file(path), base_offset=piece.base_offset, name=path
        )
        entry = index.entry_at_offset(offset)
        if entry < 0:
            return beginning
        position = index.positions[entry]
        found_offset = piece.base_offset + index.offsets[entry]
        data = self._files.get(piece.path).pread(HEADER_BYTES, position)
        try:
            fits = read_header(data).base_offset == found_offset
        except CorruptBatch:
            fits = False
        return (position, found_offset) if fits else beginning

    def _place_of(self, offset: int) -> int:
        return max(0, bisect_right(self._row, offset, key=lambda piece: piece.base_offset) - 1)

    # --- segments and files -----------------------------------------------------------------------

    def _begin_anew(self, offset: int) -> None:
        """Nothing readable is left: go on with an empty segment at `offset`."""
        if not self._row and self._recovery_point > self._log_start_offset and not self._is_capped:
            piece = SegmentFile(self._directory, offset, 0, offset)
            self._note_damage(piece, 0, self._log_start_offset, "no segment is left")
        for piece in reversed(self._row):
            unlink_index_files(self._disk, self._directory, piece.base_offset)
            self._disk.unlink(piece.path)
            self._files.drop(piece.path)
        self._row = []
        self._start_segment(offset)

    def _leave_damaged_segment(self) -> None:
        """Appending needs an index of the whole segment, which damage may not allow: roll."""
        last = self._row[-1]
        is_damaged = any(damage.path == last.path for damage in self.report.damage)
        if is_damaged and last.base_offset < self._log_end_offset:
            self._start_segment(self._log_end_offset)

    def _start_segment(self, offset: int) -> None:
        path = offset_path(self._directory, offset, LOG_SUFFIX)
        self._files.put(path, self._disk.open(path, create=True))
        self._disk.sync_directory(self._directory)
        self._row.append(SegmentFile(path, offset, 0, offset))
