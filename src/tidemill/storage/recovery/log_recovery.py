"""Recovers one log: after a clean shutdown by trusting what was written, otherwise by scanning.

Theory of operation. The *recovery point* divides a log. Everything below it was flushed: invalid
bytes there are damage, which is reported and never cut, because the offsets after it were
acknowledged. Above it nothing was promised: the log is scanned, with checksums, and ends at the
first invalid batch. The bytes that are cut off are kept in a side file. A valid batch of this log
after the cut makes the partition suspect.

    |--- segments not looked at ---|--- seek by header ---|====== scan ======|~~ cut ~~|
    log start                      segment that holds the recovery point     new end

The surviving bytes are written again and synced before they count as flushed. A sync alone is not
enough: if an earlier one failed, the kernel calls pages clean that never reached the disk, and only
the memory of the process that saw the failure knew it.

Leader epochs below the recovery point come from their file, if it agrees with the batches.
Producers come from the newest snapshot that is not past the end, and a replay of what follows it. A
batch does not say when it was appended, and its records have the times of their client. So a replay
takes the time when the segment last changed, or a later one that the batch has: never before the
append, so that no live producer expires, and the same for every replay of what was flushed.
Files that are lost, damaged or out of date are rebuilt from the batches.

A crash during recovery is a crash like any other: every step leaves a log from which the same
recovery reaches the same end. First the cut (see `tail_cut`), then the small files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from tidemill.core.errors import KafkaError, StorageFault
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.file_copy import copy_range
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
from tidemill.storage.recovery.checked_scan import CheckedScan, try_find_batch_after
from tidemill.storage.recovery.recovery_report import Damage, PartitionReport
from tidemill.storage.recovery.segment_files import (
    SegmentFile,
    build_segments,
    complete_index,
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
from tidemill.wire.batch import HEADER_BYTES, BatchHeader, CorruptBatch, read_header, verify
from tidemill.wire.transaction_marker import TransactionMarker, read_marker

__all__ = ["CheckpointedLog", "recover", "try_load_clean"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedLog:
    """What the last checkpoint says about a log; the defaults if it does not know the log."""

    recovery_point: int = 0
    log_start_offset: int = 0
    size_bytes: int = 0
    """Of all segments. Like the number of producers, it only counts after a clean shutdown."""
    producers: int = 0
    is_capped: bool = False
    """The log was cut or restarted here since the checkpoint: it may end earlier."""


def try_load_clean(
    disk: Disk,
    files: FileCache,
    directory: str,
    checkpointed: CheckpointedLog,
    *,
    index_interval_bytes: int,
) -> LoadedState | None:
    """The log as a clean shutdown left it; None if the files do not agree with the checkpoint.

    A start does this for up to eight thousand logs, so only two small files are opened.
    """
    names = list_useful_names(disk, directory)
    segment_files = find_segment_files(
        disk, directory, names, log_end_offset=checkpointed.recovery_point
    )
    size_bytes = sum(found.size_bytes for found in segment_files)
    if not segment_files or size_bytes != checkpointed.size_bytes:
        return None
    try:
        epochs = try_read_epochs(disk, directory, names)
        producers = ProducerStates()
        if checkpointed.producers:  # counted by `fact_count`
            path = offset_path(directory, checkpointed.recovery_point, SNAPSHOT_SUFFIX)
            producers, _ = ProducerStates.decode(disk.read_file(path), name=path)
    except StorageFault:
        return None
    if producers.fact_count < checkpointed.producers or (
        epochs is None and checkpointed.size_bytes
    ):
        return None
    epochs = LeaderEpochs() if epochs is None else epochs
    epochs.truncate_from_start(checkpointed.log_start_offset)
    return LoadedState(
        segments=build_segments(
            disk, files, directory, segment_files, index_interval_bytes=index_interval_bytes
        ),
        log_start_offset=max(checkpointed.log_start_offset, segment_files[0].base_offset),
        flushed_offset=checkpointed.recovery_point,
        epochs=epochs,
        producers=producers,
        snapshot_offsets=offsets_in(names, SNAPSHOT_SUFFIX),
    )


def recover(
    disk: Disk,
    files: FileCache,
    directory: str,
    checkpointed: CheckpointedLog,
    *,
    index_interval_bytes: int,
    now_ms: int,
) -> tuple[LoadedState, PartitionReport]:
    """The log as the disk still has it, made durable; and what recovery found."""
    recovery = _Recovery(disk, files, directory, checkpointed, index_interval_bytes, now_ms)
    return recovery.run(), recovery.report


@final
class _Recovery:
    """The recovery of one log."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        directory: str,
        checkpointed: CheckpointedLog,
        index_interval_bytes: int,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self._files = files
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._now_ms = now_ms
        self._names = list_useful_names(disk, directory)
        self._segments = find_segment_files(disk, directory, self._names)
        first = self._segments[0].base_offset if self._segments else 0
        self._recovery_point = max(checkpointed.recovery_point, first)
        self._is_capped = checkpointed.is_capped
        self._log_start_offset = max(checkpointed.log_start_offset, first)
        self._last_flushed: BatchHeader | None = None
        """The last batch below the recovery point that the seek saw."""
        self._tail_epochs: list[tuple[int, int]] = []
        """Leader epochs of the scanned batches, each with the offset of its first batch."""
        self._changed_ms: dict[str, int] = {}
        """When each segment last changed, as far as it is known: rewriting dates it anew."""
        self._unappendable: set[str] = set()
        """Segments with invalid bytes, also below the log start, where nobody misses them."""
        self.report = PartitionReport()

    def run(self) -> LoadedState:
        if not self._segments:
            self._start_without_segments()
        self._recover_tail(*self._seek_recovery_point())
        snapshots = ProducerSnapshots(
            self._disk, self._directory, offsets_in(self._names, SNAPSHOT_SUFFIX)
        )
        if snapshots.newest_offset > self._log_end_offset:
            snapshots.drop_after(self._log_end_offset)
            self._disk.sync_directory(self._directory)
        producers = self._producers(snapshots)
        epochs = self._epochs()
        if self._log_end_offset < self._log_start_offset:
            self._start_empty(self._log_start_offset)
        else:
            self._leave_damaged_segment()
        complete_index(
            self._disk,
            self._files,
            self._directory,
            self._segments[-1],
            interval_bytes=self._index_interval_bytes,
        )
        names = self._disk.list_names(self._directory)
        return LoadedState(
            segments=build_segments(
                self._disk,
                self._files,
                self._directory,
                self._segments,
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
        return self._segments[-1].next_offset

    # --- the batches ------------------------------------------------------------------------------

    def _seek_recovery_point(self) -> tuple[int, int]:
        """The segment, and the byte in it, at which the recovery point is."""
        target = self._recovery_point
        place = self._place_of(target)
        segment = self._segments[place]
        start, segment.next_offset = self._indexed_position(segment, target - 1)
        if segment.next_offset >= target:
            return place, start
        for position, header in self._headers(segment, start, segment.next_offset):
            if header.next_offset > target:
                segment.next_offset = header.base_offset
                return place, position
            self._last_flushed = header
            segment.next_offset = header.next_offset
            if segment.next_offset == target:
                return place, position + header.size_bytes
        if not self._is_capped:
            self._unappendable.add(segment.path)
            self._note_missing(segment)
            segment.next_offset = target
        return place, segment.size_bytes

    def _note_missing(self, segment: SegmentFile) -> None:
        """The segment ends before the recovery point, which matters if readers can get there."""
        if self._recovery_point > self._log_start_offset:
            detail = f"ends at {segment.next_offset}, but {self._recovery_point} was flushed"
            self._note_damage(segment, segment.size_bytes, segment.next_offset, detail)

    def _recover_tail(self, place: int, position: int) -> None:
        """Scan the unpromised part, cut it at the first fault, make the rest durable."""
        first_place, first_position = place, position
        for segment in self._segments[place:]:
            self._changed_ms[segment.path] = self._disk.changed_ms(segment.path)
        epoch = self._last_flushed.partition_leader_epoch if self._last_flushed else NO_EPOCH
        next_offset = self._segments[place].next_offset
        while place < len(self._segments):
            segment = self._segments[place]
            if place > first_place and segment.base_offset != next_offset:
                detail = f"a segment begins at {segment.base_offset}, {next_offset} is next"
                self._cut(place, 0, next_offset, detail)
                break
            scan = CheckedScan(
                self._files.get(segment.path),
                position=position,
                end=segment.size_bytes,
                next_offset=next_offset,
                leader_epoch=epoch,
            )
            for found in scan:
                self._note_epoch(found.header)
            self.report.scanned_bytes += scan.position - position
            segment.next_offset = next_offset = scan.next_offset
            epoch = scan.leader_epoch
            if scan.damage is not None:
                self._cut(place, scan.position, next_offset, scan.damage)
                break
            place, position = place + 1, 0
        self._rewrite_and_sync(first_place, first_position)

    def _note_epoch(self, header: BatchHeader) -> None:
        epoch = header.partition_leader_epoch
        if not self._tail_epochs or self._tail_epochs[-1][0] != epoch:
            self._tail_epochs.append((epoch, header.base_offset))

    def _cut(self, place: int, position: int, offset: int, detail: str) -> None:
        """End the log before this byte of this segment."""
        cut = TailCut(
            self._disk,
            self._files,
            self._directory,
            self._segments,
            place=place,
            position=position,
            offset=offset,
        )
        if cut.has_valid_batch():
            self.report.is_suspect = True
        CleanPoint(self._disk, self._directory).lower_to(offset)
        self.report.cut = cut.perform(detail)
        self._segments = cut.kept

    def _rewrite_and_sync(self, place: int, position: int) -> None:
        """Write the scanned bytes again and sync them and their files' names."""
        for segment in self._segments[place:]:
            file = self._files.get(segment.path)
            copy_range(file, file, start=position, end=segment.size_bytes, target_position=position)
            if position < segment.size_bytes:
                file.sync()
            position = 0
        self._disk.sync_directory(self._directory)

    # --- epochs and producers ---------------------------------------------------------------------

    def _epochs(self) -> LeaderEpochs:
        """The leader epochs of what is left; stored if their file does not say the same."""
        try:
            stored = try_read_epochs(self._disk, self._directory, self._names)
        except StorageFault:
            stored = None
        epochs = None
        if stored is not None:
            epochs = self._try_extend(LeaderEpochs(stored.entries()))
        if epochs is None:
            if self._segments[0].base_offset < self._recovery_point:
                self.report.rebuilt.append(LEADER_EPOCHS_NAME)
            epochs = self._epochs_from_batches()
        epochs.truncate_from_start(self._log_start_offset)
        if stored is None or stored.entries() != epochs.entries():
            path = f"{self._directory}/{LEADER_EPOCHS_NAME}"
            self._disk.write_file_atomically(path, epochs.encode())
        return epochs

    def _try_extend(self, epochs: LeaderEpochs) -> LeaderEpochs | None:
        """The stored epochs plus the scanned ones, if they agree with the batches."""
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
        for header in self._all_headers(self._segments[0].base_offset):
            if header.partition_leader_epoch > epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
        return epochs

    def _producers(self, snapshots: ProducerSnapshots) -> ProducerStates:
        """Replayed from the newest snapshot; stored if retention could drop replayed segments."""
        found = snapshots.try_load_newest(self._log_end_offset)
        if found is None and snapshots.newest_offset >= 0:
            self.report.rebuilt.append("producers")
        producers, offset = found or (ProducerStates(), self._segments[0].base_offset)
        for segment in self._segments[self._place_of(offset) :]:
            changed_ms = self._last_changed_ms(segment)
            for position, header in self._batches_from(segment, offset):
                appended_ms = min(max(changed_ms, header.max_timestamp), self._now_ms)
                if not header.is_control:
                    producers.update(header, appended_ms)
                    continue
                marker = self._try_read_marker(segment, position, header)
                if marker is not None:
                    producers.end_transaction(header, marker, appended_ms)
        is_behind = self.report.scanned_bytes or offset < self._segments[-1].base_offset
        if is_behind and producers.fact_count and offset != self._log_end_offset:
            path = offset_path(self._directory, self._log_end_offset, SNAPSHOT_SUFFIX)
            self._disk.write_file_atomically(path, producers.encode(self._log_end_offset))
        return producers

    def _try_read_marker(
        self, segment: SegmentFile, position: int, header: BatchHeader
    ) -> TransactionMarker | None:
        """None if it is damaged: nobody knows how its transaction ended, so it stays open."""
        data = memoryview(self._files.get(segment.path).pread(header.size_bytes, position))
        try:
            verify(data, header)
            return read_marker(data, header)
        except KafkaError as error:
            self._note_damage(segment, position, header.base_offset, error.detail)
            return None

    def _last_changed_ms(self, segment: SegmentFile) -> int:
        known = self._changed_ms.get(segment.path)
        return self._disk.changed_ms(segment.path) if known is None else known

    # --- walking and noting -----------------------------------------------------------------------

    def _all_headers(self, offset: int) -> Iterator[BatchHeader]:
        """The headers of all batches from `offset` on."""
        for segment in self._segments[self._place_of(offset) :]:
            for _, header in self._batches_from(segment, offset):
                yield header

    def _batches_from(self, segment: SegmentFile, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        start = self._indexed_position(segment, offset)
        for position, header in self._headers(segment, *start):
            if header.base_offset >= offset:
                yield position, header

    def _headers(
        self, segment: SegmentFile, position: int, next_offset: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch; damage is noted and skipped."""
        file = self._files.get(segment.path)
        while position < segment.size_bytes:
            try:
                for at, header in walk_headers(file, position, segment.size_bytes):
                    if header.base_offset < next_offset:
                        raise CorruptBatch(f"offset {header.base_offset} after {next_offset - 1}")
                    yield at, header
                    position, next_offset = at + header.size_bytes, header.next_offset
                return
            except CorruptBatch as error:
                detail = error.detail
            self._unappendable.add(segment.path)
            found = try_find_batch_after(
                file, position=position, end=segment.size_bytes, next_offset=next_offset
            )
            resumes_at = self._recovery_point if found is None else found.header.base_offset
            if resumes_at > self._log_start_offset:
                self._note_damage(segment, position, next_offset, detail)
            if found is None:
                return
            position, next_offset = found.position, found.header.base_offset

    def _note_damage(
        self, segment: SegmentFile, position: int, next_offset: int, detail: str
    ) -> None:
        seen = {(damage.path, damage.position) for damage in self.report.damage}
        if (segment.path, position) not in seen:
            self.report.damage.append(Damage(segment.path, position, next_offset, detail))
            self.report.is_suspect = True

    def _indexed_position(self, segment: SegmentFile, offset: int) -> tuple[int, int]:
        """Where to start looking for `offset`: a position, and the offset of the batch there."""
        beginning = 0, segment.base_offset
        path = offset_path(self._directory, segment.base_offset, INDEX_SUFFIX)
        if offset <= segment.base_offset or not self._disk.exists(path):
            return beginning
        index, _ = OffsetIndex.decode(
            self._disk.read_file(path), base_offset=segment.base_offset, name=path
        )
        entry = index.entry_at_offset(offset)
        if entry < 0:
            return beginning
        position = index.positions[entry]
        found_offset = segment.base_offset + index.offsets[entry]
        data = self._files.get(segment.path).pread(HEADER_BYTES, position)
        try:
            fits = read_header(data).base_offset == found_offset
        except CorruptBatch:
            fits = False
        return (position, found_offset) if fits else beginning

    def _place_of(self, offset: int) -> int:
        return max(
            0, bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1
        )

    # --- segments and files -----------------------------------------------------------------------

    def _start_empty(self, offset: int) -> None:
        """Nothing readable is left: continue with an empty segment at `offset`."""
        if (
            not self._segments
            and self._recovery_point > self._log_start_offset
            and not self._is_capped
        ):
            segment = SegmentFile(self._directory, offset, 0, offset)
            self._note_damage(segment, 0, self._log_start_offset, "no segment is left")
        for segment in reversed(self._segments):
            unlink_index_files(self._disk, self._directory, segment.base_offset)
            self._disk.unlink(segment.path)
            self._files.drop(segment.path)
        self._segments = []
        self._start_segment(offset)

    def _start_without_segments(self) -> None:
        """A restart of the log did not get to its new segment, or someone removed the segments."""
        stored = offsets_in(self._names, SNAPSHOT_SUFFIX)
        offset = max(self._recovery_point, self._log_start_offset, *stored[-1:])
        self._start_empty(offset)
        if not self.report.damage:
            self._log_start_offset = offset

    def _leave_damaged_segment(self) -> None:
        """Appending needs an index of the whole segment, which damage may prevent: roll."""
        last = self._segments[-1]
        if last.path in self._unappendable and last.base_offset < self._log_end_offset:
            self._start_segment(self._log_end_offset)

    def _start_segment(self, offset: int) -> None:
        path = offset_path(self._directory, offset, LOG_SUFFIX)
        self._files.put(path, self._disk.open(path, create=True))
        self._disk.sync_directory(self._directory)
        self._segments.append(SegmentFile(path, offset, 0, offset))
