"""Recovers one log after an unclean end, by scanning what was not promised.

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

Leader epochs and producers come from their files and a replay (`replayed_state`).

A crash during recovery is a crash like any other: every step leaves a log from which the same
recovery reaches the same end. First the cut (see `tail_cut`), then the small files.
"""

from __future__ import annotations

from typing import final

from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.file_copy import copy_range
from tidemill.storage.files.log_file_names import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    offset_path,
)
from tidemill.storage.index.segment_index import unlink_index_files
from tidemill.storage.log.partition_log import LoadedState
from tidemill.storage.log.segment import RELATIVE_OFFSET_MAX
from tidemill.storage.recovery.checked_scan import CheckedScan, ends_by
from tidemill.storage.recovery.clean_load import CheckpointedLog
from tidemill.storage.recovery.recovery_report import PartitionReport
from tidemill.storage.recovery.replayed_state import ReplayedState
from tidemill.storage.recovery.segment_files import (
    SegmentFile,
    build_segments,
    complete_index,
    find_segment_files,
    list_useful_names,
    offsets_in,
)
from tidemill.storage.recovery.segment_walk import SegmentWalk
from tidemill.storage.recovery.tail_cut import TailCut
from tidemill.storage.state.clean_point import CleanPoint
from tidemill.storage.state.leader_epochs import NO_EPOCH
from tidemill.storage.state.producer_snapshots import ProducerSnapshots

__all__ = ["recover"]


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
        self._names = list_useful_names(disk, directory)
        segments = find_segment_files(disk, directory, self._names)
        first = segments[0].base_offset if segments else 0
        self._recovery_point = max(checkpointed.recovery_point, first)
        self._is_capped = checkpointed.is_capped
        self._walk = SegmentWalk(
            disk,
            files,
            directory,
            segments,
            recovery_point=self._recovery_point,
            log_start_offset=max(checkpointed.log_start_offset, first),
        )
        self._state = ReplayedState(
            disk, files, directory, self._walk, names=self._names, now_ms=now_ms
        )
        self.report = self._walk.report

    def run(self) -> LoadedState:
        if not self._walk.segments:
            self._start_without_segments()
        self._recover_tail(*self._seek_recovery_point())
        snapshots = ProducerSnapshots(
            self._disk, self._directory, offsets_in(self._names, SNAPSHOT_SUFFIX)
        )
        if snapshots.newest_offset > self._walk.log_end_offset:
            snapshots.drop_after(self._walk.log_end_offset)
            self._disk.sync_directory(self._directory)
        producers = self._state.producers(snapshots)
        epochs = self._state.epochs()
        if self._walk.log_end_offset < self._walk.log_start_offset:
            self._start_empty(self._walk.log_start_offset)
        else:
            self._leave_damaged_segment()
        complete_index(
            self._disk,
            self._files,
            self._directory,
            self._walk.segments[-1],
            interval_bytes=self._index_interval_bytes,
        )
        names = self._disk.list_names(self._directory)
        return LoadedState(
            segments=build_segments(
                self._disk,
                self._files,
                self._directory,
                self._walk.segments,
                index_interval_bytes=self._index_interval_bytes,
            ),
            log_start_offset=self._walk.log_start_offset,
            flushed_offset=self._walk.log_end_offset,
            epochs=epochs,
            producers=producers,
            snapshot_offsets=offsets_in(names, SNAPSHOT_SUFFIX),
            is_replayed=True,
        )

    # --- the batches ------------------------------------------------------------------------------

    def _seek_recovery_point(self) -> tuple[int, int]:
        """The segment, and the byte in it, at which the recovery point is."""
        target = self._recovery_point
        place = self._walk.place_of(target)
        segment = self._walk.segments[place]
        start, segment.next_offset = self._walk.indexed_position(segment, target - 1)
        if segment.next_offset >= target:
            return place, start
        for position, header in self._walk.headers(segment, start, segment.next_offset):
            if header.next_offset > target:
                segment.next_offset = header.base_offset
                return place, position
            self._state.last_flushed = header
            segment.next_offset = header.next_offset
            if segment.next_offset == target:
                return place, position + header.size_bytes
        if not self._is_capped:
            self._walk.unappendable.add(segment.path)
            self._note_missing(segment)
            segment.next_offset = target
        return place, segment.size_bytes

    def _note_missing(self, segment: SegmentFile) -> None:
        """The segment ends before the recovery point, which matters if readers can get there."""
        if self._recovery_point > self._walk.log_start_offset:
            detail = f"ends at {segment.next_offset}, but {self._recovery_point} was flushed"
            self._walk.note_damage(segment, segment.size_bytes, segment.next_offset, detail)

    def _recover_tail(self, place: int, position: int) -> None:
        """Scan the unpromised part, cut it at the first fault, make the rest durable."""
        first_place, first_position = place, position
        for segment in self._walk.segments[place:]:
            self._state.changed_ms[segment.path] = self._disk.changed_ms(segment.path)
        last = self._state.last_flushed
        epoch = NO_EPOCH if last is None else last.partition_leader_epoch
        next_offset = self._walk.segments[place].next_offset
        while place < len(self._walk.segments):
            segment = self._walk.segments[place]
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
                check=ends_by(self._end_offset_max(place)),
            )
            for found in scan:
                self._state.note_scanned(found.header)
            self.report.scanned_bytes += scan.position - position
            segment.next_offset = next_offset = scan.next_offset
            epoch = scan.leader_epoch
            if scan.damage is not None:
                self._cut(place, scan.position, next_offset, scan.damage)
                break
            place, position = place + 1, 0
        self._rewrite_and_sync(first_place, first_position)

    def _end_offset_max(self, place: int) -> int:
        """Up to where a segment can have offsets: damage in one would end the log far off."""
        segments = self._walk.segments
        if place + 1 < len(segments):
            return segments[place + 1].base_offset
        return segments[place].base_offset + RELATIVE_OFFSET_MAX + 1

    def _cut(self, place: int, position: int, offset: int, detail: str) -> None:
        """End the log before this byte of this segment."""
        cut = TailCut(
            self._disk,
            self._files,
            self._directory,
            self._walk.segments,
            place=place,
            position=position,
            offset=offset,
        )
        if cut.has_valid_batch():
            self.report.is_suspect = True
        CleanPoint(self._disk, self._directory).lower_to(offset)
        self.report.cut = cut.perform(detail)
        self._walk.segments = cut.kept

    def _rewrite_and_sync(self, place: int, position: int) -> None:
        """Write the scanned bytes again and sync them and their files' names."""
        for segment in self._walk.segments[place:]:
            file = self._files.get(segment.path)
            copy_range(file, file, start=position, end=segment.size_bytes, target_position=position)
            if position < segment.size_bytes:
                file.sync()
            position = 0
        self._disk.sync_directory(self._directory)

    # --- segments and files -----------------------------------------------------------------------

    def _start_empty(self, offset: int) -> None:
        """Nothing readable is left: continue with an empty segment at `offset`."""
        if (
            not self._walk.segments
            and self._recovery_point > self._walk.log_start_offset
            and not self._is_capped
        ):
            segment = SegmentFile(self._directory, offset, 0, offset)
            self._walk.note_damage(segment, 0, self._walk.log_start_offset, "no segment is left")
        for segment in reversed(self._walk.segments):
            unlink_index_files(self._disk, self._directory, segment.base_offset)
            self._disk.unlink(segment.path)
            self._files.drop(segment.path)
        self._walk.segments = []
        self._start_segment(offset)

    def _start_without_segments(self) -> None:
        """A restart of the log did not get to its new segment, or someone removed the segments."""
        stored = offsets_in(self._names, SNAPSHOT_SUFFIX)
        offset = max(self._recovery_point, self._walk.log_start_offset, *stored[-1:])
        self._start_empty(offset)
        if not self.report.damage:
            self._walk.log_start_offset = offset

    def _leave_damaged_segment(self) -> None:
        """Appending needs an index of the whole segment, which damage may prevent: roll."""
        last = self._walk.segments[-1]
        if last.path in self._walk.unappendable and last.base_offset < self._walk.log_end_offset:
            self._start_segment(self._walk.log_end_offset)

    def _start_segment(self, offset: int) -> None:
        path = offset_path(self._directory, offset, LOG_SUFFIX)
        self._files.put(path, self._disk.open(path, create=True))
        self._disk.sync_directory(self._directory)
        self._walk.segments.append(SegmentFile(path, offset, 0, offset))
