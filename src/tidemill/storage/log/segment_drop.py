"""Segments leave the front of a log: chosen on the loop, renamed in a thread, then forgotten.

    `look_at_ages`  in a thread: the newest timestamps of the oldest segments, from their indexes
    `plan_drop`     on the loop: which segments age, size and log start allow to go
    `run`           in a thread: each is renamed and the directory synced before the next one, so
                    that a crash leaves a shorter log, never a hole
    `end_drop`      on the loop: readers no longer find them, the log start moves

Until the last step readers find the segments. So the file is pinned (see `segment`) before it is
renamed. The log start moves only after the renames: no reader sees a start that a crash takes back.
Nothing else changes the log's files meanwhile: their owner changes one log at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, final

from tidemill.core.limits import SEGMENTS_PER_DROP
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.log_file_names import DELETED_SUFFIX
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.segment import Segment
from tidemill.storage.log.segment_swap import SegmentSwap

if TYPE_CHECKING:
    from tidemill.storage.log.partition_log import FilePartitionLog

__all__ = ["Ages", "LogFront", "SegmentDrop"]

Ages = Mapping[tuple[Segment, int], int]
"""The timestamp of each segment's newest record, or a later bound.

Each with the offset at which the segment ended: one that has grown since is younger than it seems.
"""


@final
class SegmentDrop:
    """The segments that leave one log together, and files that left it earlier."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: Sequence[Segment],
        *,
        obsolete: Sequence[tuple[int, str]],
        has_new_segment: bool,
        swap: SegmentSwap | None,
    ) -> None:
        """`obsolete` are paths to unlink, each with the time since when.

        `has_new_segment`: the segment after them is new, and its name is not durable yet.
        `swap`: left unfinished by a compaction that failed.
        """
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._has_new_segment = has_new_segment
        self.swap = swap
        """None when it is settled."""
        self.obsolete = list(obsolete)
        """Those that are not unlinked yet."""
        self.renamed: list[tuple[Segment, str]] = []
        """The segments that are out, oldest first, and their new paths."""

    @property
    def cost(self) -> int:
        """How many files it touches."""
        return len(self._segments) + len(self.obsolete)

    def run(self) -> None:
        """For `Disk.run`. Raises StorageFault; `end_drop` looks how far it came."""
        while self.obsolete:  # first: the rest may need the room
            self._disk.unlink(self.obsolete[-1][1])
            self.obsolete.pop()
        if self.swap is not None:
            self.swap.settle()
            self.swap = None
        if self._has_new_segment:
            self._disk.sync_directory(self._directory)  # a log always has a segment
        for segment in self._segments:
            segment.pin_file()
            self.renamed.append((segment, segment.rename(DELETED_SUFFIX)))
            self._disk.sync_directory(self._directory)


@final
class LogFront:
    """The oldest segments of one log, and the files of those that left it."""

    def __init__(self, disk: Disk, log: FilePartitionLog) -> None:
        self._disk = disk
        self._log = log
        self._deleted: list[tuple[int, str]] = []
        """Files that left the log: when to unlink each, and its path."""

    def look_at_ages(self, now_ms: int, segments_max: int) -> Ages:
        """The first step: for `Disk.run`."""
        log = self._log
        return _look_at_ages(
            log.segments.snapshot(), log.config, now_ms=now_ms, segments_max=segments_max
        )

    def plan_drop(
        self, ages: Ages, *, now_ms: int, high_watermark: int, segments_max: int
    ) -> SegmentDrop | None:
        """The segments that go now, and files that are due to be unlinked; None if none are.

        Raises StorageFault; then nothing changed.
        """
        log = self._log
        if log.is_being_cut:
            return None
        segments = _choose(
            log.segments,
            log.config,
            ages,
            now_ms=now_ms,
            log_start_offset=log.log_start_offset,
            end_offset=high_watermark,
            size_bytes=log.size_bytes,
            segments_max=segments_max,
        )
        rolls = len(segments) == len(log.segments)
        if rolls:
            log.roll()
        obsolete = [entry for entry in self._deleted if entry[0] <= now_ms]
        if not segments and not obsolete:
            return None
        self._deleted = [entry for entry in self._deleted if entry[0] > now_ms]
        log.progress.changes.forget_indexes(segments)
        swap, log.swap = log.swap, None
        return SegmentDrop(
            self._disk,
            log.directory,
            segments,
            obsolete=obsolete,
            has_new_segment=rolls,
            swap=swap,
        )

    def end_drop(self, drop: SegmentDrop, now_ms: int) -> int:
        """`drop` ran, perhaps not to its end; the number of segments that are gone."""
        log = self._log
        self._deleted += drop.obsolete
        log.swap = drop.swap
        if not drop.renamed or log.is_closed:
            return 0
        for segment, path in drop.renamed:
            log.size_bytes -= segment.size_bytes
            self._deleted.append((now_ms + log.config.delete_delay_ms, path))
        log.segments.remove_oldest(len(drop.renamed))
        log.progress.changes.keep_only(set(log.segments))
        log.advance_start(log.segments.oldest.base_offset)
        return len(drop.renamed)

    def apply_retention(self, *, now_ms: int, high_watermark: int) -> int:
        """As `PartitionLog.apply_retention`: all steps, until nothing more may go; blocks."""
        gone, dropped = 1, 0
        while gone:
            ages = self.look_at_ages(now_ms, SEGMENTS_PER_DROP)
            drop = self.plan_drop(
                ages,
                now_ms=now_ms,
                high_watermark=high_watermark,
                segments_max=SEGMENTS_PER_DROP,
            )
            if drop is None:
                break
            try:
                drop.run()
            finally:
                gone = self.end_drop(drop, now_ms)
            dropped += gone
        return dropped

    def expired(self, *, now_ms: int, end_offset: int) -> tuple[int, int]:
        """As `PartitionLog.expired`."""
        log = self._log
        segments = log.segments.snapshot()
        found = _choose(
            segments,
            log.config,
            self.look_at_ages(now_ms, SEGMENTS_PER_DROP),
            now_ms=now_ms,
            log_start_offset=log.log_start_offset,
            end_offset=end_offset,
            size_bytes=log.size_bytes,
            segments_max=SEGMENTS_PER_DROP,
        )
        end = found[-1].next_offset if found else log.log_start_offset
        return end, sum(segment.size_bytes for segment in found)


def _look_at_ages(
    segments: Iterable[Segment], config: LogConfig, *, now_ms: int, segments_max: int
) -> Ages:
    """The ages of up to this many of the oldest segments, as far as they matter."""
    ages: dict[tuple[Segment, int], int] = {}
    if config.deletes and config.retention_ms >= 0:
        for segment in segments:
            next_offset = segment.next_offset  # before its age: it may grow meanwhile
            newest_ms = ages[segment, next_offset] = segment.newest_ms(now_ms)
            if now_ms - newest_ms <= config.retention_ms or len(ages) == segments_max:
                break
    return ages


def _choose(
    segments: Iterable[Segment],
    config: LogConfig,
    ages: Ages,
    *,
    now_ms: int,
    log_start_offset: int,
    end_offset: int,
    size_bytes: int,
    segments_max: int,
) -> list[Segment]:
    """The oldest segments that may go; none that reaches over `end_offset`, or is empty."""
    chosen: list[Segment] = []
    for segment in segments:
        size_bytes -= segment.size_bytes
        by_start = segment.next_offset <= log_start_offset
        by_size = 0 <= config.retention_bytes <= size_bytes
        newest_ms = ages.get((segment, segment.next_offset), now_ms)
        by_time = 0 <= config.retention_ms < now_ms - newest_ms
        may_go = by_start or (config.deletes and (by_size or by_time))
        is_held = not segment.size_bytes or segment.next_offset > end_offset
        if is_held or not may_go or len(chosen) == segments_max:
            break
        chosen.append(segment)
    return chosen
