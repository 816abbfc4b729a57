"""HOT PATH. One partition's log in its own directory: a list of segments, the last one growing.

Budget: an append takes 8 us and a tail read 10 us, besides one system call each.

Theory of operation. Everything here runs on the event loop, except what is handed out to be run by
`Disk.run`: a slice's `load`, a flush point's `sync`, the searches by time, which only read, and the
steps of a drop (`segment_drop`) and of a cut (`log_cut`) that touch files.

Bytes reach the page cache by `append` and the disk by a flush (see `flush_progress`).

What a crash may leave, and recovery must expect:
- anything after the recovery point; after a gap between two segments nothing counts;
- producer snapshots and epoch entries at or after the log's end, from before a truncation;
- index files that are missing or short; they never describe bytes that were not synced;
- files ending in .deleted, .tmp or .cleaned, which have no value, and .swap, which does.

Compaction works beside the log (`compaction`) and installs its result through `begin_swap`; a cut
and a drop settle a swap that a failed compaction left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

from tidemill.core.errors import invariant
from tidemill.storage.files.disk import Buffer, Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.index.aborted_index import AbortedTransaction
from tidemill.storage.log.flush_point import FlushPoint
from tidemill.storage.log.flush_progress import FlushProgress
from tidemill.storage.log.interface import FOREVER, LogConfig, LogSlice, TimedOffset
from tidemill.storage.log.log_checks import (
    check_order,
    check_readable,
    check_start,
    cut_now,
    read_markers,
)
from tidemill.storage.log.log_cut import FileLogCut
from tidemill.storage.log.segment import RELATIVE_OFFSET_MAX, Segment
from tidemill.storage.log.segment_drop import LogFront
from tidemill.storage.log.segment_swap import SegmentSwap
from tidemill.storage.log.segments import Segments
from tidemill.storage.state.clean_point import CleanPoint
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.log_damage import LogDamage, store_damage
from tidemill.storage.state.producer_snapshots import ProducerSnapshots
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.wire.batch import NO_TIMESTAMP, BatchHeader
from tidemill.wire.marks import VEILED

__all__ = ["BeforeCut", "FilePartitionLog", "LoadedState"]

BeforeCut = Callable[[int], Callable[[], None]]
"""Takes the offset that is left; returns what makes the recovery point durable, for a thread."""


@final
@dataclass(slots=True, kw_only=True)
class LoadedState:
    """What recovery found: at least one segment, of which only the last is not closed."""

    segments: Sequence[Segment]
    log_start_offset: int
    flushed_offset: int
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshot_offsets: Sequence[int] = ()
    """The producer snapshots in the directory, valid or not."""
    damage: LogDamage = field(default_factory=LogDamage)
    is_replayed: bool = False
    """Epochs and producers were rebuilt from batches, and so from what damage has left of them."""
    is_stored: bool = False
    """Producers and indexes are on disk up to the log's end."""


@final
class FilePartitionLog:
    """`PartitionLog` on a disk."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        directory: str,
        config: LogConfig,
        state: LoadedState,
        *,
        before_cut: BeforeCut | None = None,
    ) -> None:
        self._disk = disk
        self._files = files
        self.directory = directory
        self.config = config
        self._before_cut = before_cut
        self.segments = Segments(disk, files, directory, state.segments)
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = self.segments.active.next_offset
        self.size_bytes = self.segments.size_bytes()
        self.epochs = state.epochs
        self.producers = state.producers
        self.damage = state.damage
        self.damage.cut_to(self.log_end_offset)
        self.damage.start_at(self.log_start_offset)
        self.progress = FlushProgress(
            disk,
            self.segments,
            epochs=state.epochs,
            producers=state.producers,
            snapshots=ProducerSnapshots(disk, directory, state.snapshot_offsets),
            flushed_offset=state.flushed_offset,
            is_stored=state.is_stored,
        )
        self._active_since_ms = NO_TIMESTAMP
        """When the active segment got its first batch; decides when the segment rolls by time."""
        self._last_append_ms = 0
        self.swap: SegmentSwap | None = None
        """Of a compaction that is at work, or failed."""
        self.front = LogFront(disk, self)
        self.clean_point = CleanPoint(disk, directory)
        self.cuts = 0
        """Rises when the log is cut or closed: facts gathered before that may no longer hold."""
        self.is_closed = False
        self.is_being_cut = False
        """A cut has begun and not ended: the files hold more than the log says."""
        self.is_being_rewritten = False
        """Compaction or mending writes new segments of it: one of them at a time."""
        self.has_shown_gaps = False
        """Intact batches with a gap between them were found: another replica has compacted them."""

    @classmethod
    def create(
        cls,
        disk: Disk,
        files: FileCache,
        directory: str,
        config: LogConfig,
        *,
        base_offset: int = 0,
        before_cut: BeforeCut | None = None,
    ) -> FilePartitionLog:
        """A new, empty log. Creates the directory if it is missing."""
        disk.make_directories(directory)
        segment = Segment.create(
            disk,
            files,
            directory,
            base_offset=base_offset,
            index_interval_bytes=config.index_interval_bytes,
        )
        state = LoadedState(
            segments=[segment],
            log_start_offset=base_offset,
            flushed_offset=base_offset,
            epochs=LeaderEpochs(),
            producers=ProducerStates(),
            is_stored=True,
        )
        log = cls(disk, files, directory, config, state, before_cut=before_cut)
        log.progress.changes.note_created()
        return log

    def set_config(self, config: LogConfig) -> None:
        self.config = config

    @property
    def flushed_offset(self) -> int:
        return self.progress.flushed_offset

    # --- writing ---------------------------------------------------------------------------------

    def append(
        self, chunks: Sequence[Buffer], headers: Sequence[BatchHeader], *, now_ms: int
    ) -> None:
        size_bytes = check_order(
            headers, next_offset=self.log_end_offset, leader_epoch=self.epochs.latest
        )
        invariant(
            sum(map(len, chunks)) == size_bytes, "the headers do not describe the bytes appended"
        )
        markers = read_markers(chunks, headers)
        segment = self.segments.active
        if segment.size_bytes and self._must_roll(size_bytes, headers[-1].next_offset, now_ms):
            self.roll()
            segment = self.segments.active
        if not segment.size_bytes:
            self._active_since_ms = now_ms
        segment.append(chunks, headers)
        self.progress.changes.dirty[segment] = None
        self.size_bytes += size_bytes
        self.log_end_offset = segment.next_offset
        self._last_append_ms = now_ms
        epochs, producers = self.epochs, self.producers
        for header in headers:
            if header.partition_leader_epoch != epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                if markers is not None and header.base_offset in markers:
                    marker = markers[header.base_offset]
                    producers.end_transaction(header, marker, now_ms)
                    segment.note_marker(header, marker)
                else:
                    producers.update(header, now_ms)
            elif header.attributes & VEILED:
                producers.note_veiled(header)

    def _must_roll(self, size_bytes: int, next_offset: int, now_ms: int) -> bool:
        segment, config = self.segments.active, self.config
        if segment.size_bytes + size_bytes > config.segment_bytes:
            return True
        if self._active_since_ms == NO_TIMESTAMP:
            self._active_since_ms = _first_seen_ms(segment, now_ms)
        if now_ms - self._active_since_ms > _active_ms_max(config):
            return True
        return next_offset - segment.base_offset > RELATIVE_OFFSET_MAX

    def roll(self) -> None:
        """Start a new segment."""
        closed = self.segments.active
        self.segments.start(
            self.log_end_offset, index_interval_bytes=self.config.index_interval_bytes
        )
        closed.fallback_timestamp_ms = self._last_append_ms
        self.progress.rolled(closed)

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool = True
    ) -> LogSlice:
        check_readable(
            offset, log_start_offset=self.log_start_offset, log_end_offset=self.log_end_offset
        )
        if offset >= end_offset or offset == self.log_end_offset:
            return LogSlice((), 0)
        segment = self.segments.active
        if offset < segment.base_offset:
            segment = self.segments.holding(offset)
        if self.damage.has_ranges:
            end_offset = self.damage.readable_end(offset, end_offset)
            if self.damage.touches(segment.base_offset, segment.next_offset):
                return segment.read_verified(
                    offset,
                    max_bytes=max_bytes,
                    end_offset=end_offset,
                    at_least_one=at_least_one,
                    may_have_gaps=lambda: self.may_have_gaps,
                )
        return segment.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one
        )

    @property
    def may_have_gaps(self) -> bool:
        """Whether compaction has dropped offsets, or may have. May wait for the disk."""
        return self.config.compacts or self.has_shown_gaps or self.clean_point.offset > 0

    def doubt(self, offset: int) -> None:
        self._files.suspects.append(self.segments.holding(offset).path)

    def try_find_aborted(
        self, start_offset: int, end_offset: int
    ) -> list[AbortedTransaction] | None:
        if self.producers.last_abort_offset < start_offset:
            return []
        return self._find_aborted(start_offset, end_offset, waits=False)

    def find_aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return self._find_aborted(start_offset, end_offset, waits=True) or []

    def _find_aborted(
        self, start_offset: int, end_offset: int, *, waits: bool
    ) -> list[AbortedTransaction] | None:
        first, last = self.producers.first_abort_offset, self.producers.last_abort_offset
        found: list[AbortedTransaction] = []
        for segment in self.segments.with_offsets(max(start_offset, first), last):
            if not waits and not segment.knows_aborted:
                return None
            some, is_complete = segment.find_aborted(start_offset, end_offset)
            found += some
            if is_complete:
                break
        return found

    def offset_by_time(self, timestamp_ms: int, *, end_offset: int) -> TimedOffset | None:
        return self.segments.first_at_time(
            timestamp_ms, start_offset=self.log_start_offset, end_offset=end_offset
        )

    def max_timestamp(self, *, end_offset: int) -> TimedOffset | None:
        greatest = self.segments.max_timestamp(
            start_offset=self.log_start_offset,
            end_offset=end_offset,
            has_veils=self.producers.last_veiled_offset >= self.log_start_offset,
        )
        if greatest == NO_TIMESTAMP:
            return None
        return self.offset_by_time(greatest, end_offset=end_offset)

    # --- cutting ---------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        cut_now(self.plan_truncation(offset))

    def restart_at(self, offset: int) -> None:
        cut_now(self.plan_restart(offset))

    def plan_truncation(self, offset: int) -> FileLogCut | None:
        if offset >= self.log_end_offset:
            return None
        return self._plan_cut(offset, restarts=offset <= self.log_start_offset)

    def plan_restart(self, offset: int) -> FileLogCut:
        return self._plan_cut(offset, restarts=True)

    def _plan_cut(self, offset: int, *, restarts: bool) -> FileLogCut:
        return FileLogCut(
            self._disk,
            self.segments.copy(),
            offset=offset,
            restarts=restarts,
            producers=self.producers.capture(self.log_end_offset),
            snapshots=self.progress.snapshots.copy(),
            begin=self._begin_cut,
            end=self._end_cut,
            is_closed=lambda: self.is_closed,
            is_in_journal=lambda: not self.is_closed and self.progress.is_in_journal,
        )

    def _begin_cut(self, cut: FileLogCut) -> bool:
        end = cut.end_offset
        invariant(
            not self.progress.is_in_journal or (end >= self.flushed_offset and not cut.restarts),
            "a cut would leave bytes in the journal that are cut from their segment",
        )
        if cut.head is not None and not cut.head.begin():
            return False
        before = self._steps_before_cut(cut)
        self.is_being_cut = True
        self.cuts += 1
        started = None
        if cut.restarts:
            interval_bytes = self.config.index_interval_bytes
            started = self.segments.planned(end, index_interval_bytes=interval_bytes)
        self.segments.reset([started] if started is not None else cut.kept)
        self.log_end_offset = end
        self.log_start_offset = end if cut.restarts else min(self.log_start_offset, end)
        self.size_bytes = self.segments.size_bytes()
        had_damage = bool(self.damage)
        self.damage.cut_to(0 if cut.restarts else end)
        self.epochs.truncate_from_end(end)
        if cut.restarts:
            self.epochs.clear()
        if cut.producers is not None:
            self.producers.replace(cut.producers)
        self._active_since_ms = NO_TIMESTAMP
        unlinks, store_epochs = self.progress.cut_to(end, restarts=cut.restarts)
        after = [store_epochs]
        if had_damage:
            after.append(self._store_damage)
        if cut.restarts:  # a start that finds no segment looks at snapshots for the end of the log
            sync = partial(self._disk.sync_directory, self.directory)
            cut.begun(before=[*before, *unlinks, sync], started=started, after=after)
        else:
            cut.begun(before=before, started=None, after=[*unlinks, *after])
        return True

    def _store_damage(self) -> None:
        """What was cut is written again: a note about it must not refuse that after a restart."""
        store_damage(self._disk, self.directory, self.damage.encode())

    def _steps_before_cut(self, cut: FileLogCut) -> list[Callable[[], None]]:
        """What must be durable before a byte is cut."""
        steps: list[Callable[[], None]] = []
        if self.swap is not None:
            steps.append(self.swap.settle)
            self.swap = None
        steps.append(partial(self.clean_point.lower_to, cut.end_offset))
        lowers = cut.restarts or cut.end_offset < self.flushed_offset
        if lowers and self._before_cut is not None:
            steps.append(self._before_cut(cut.kept_end))
        return steps

    def _end_cut(self) -> None:
        self.is_being_cut = False

    def advance_start(self, offset: int) -> None:
        check_start(offset, log_end_offset=self.log_end_offset)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.damage.start_at(offset)
            self.progress.start_advanced(offset)
            self.epochs.truncate_from_start(offset)

    # --- retention -------------------------------------------------------------------------------

    def apply_retention(self, *, now_ms: int, high_watermark: int) -> int:
        return self.front.apply_retention(now_ms=now_ms, high_watermark=high_watermark)

    def expired(self, *, now_ms: int, end_offset: int) -> tuple[int, int]:
        return self.front.expired(now_ms=now_ms, end_offset=end_offset)

    # --- compaction ------------------------------------------------------------------------------

    def compactable_segments(self, end_offset: int) -> list[Segment]:
        """The closed segments, oldest first, that end at or before `end_offset` and are flushed.

        A flush that covered bytes after a segment has also written the last of its index. A segment
        in the journal stays as it is: after a crash the journal's bytes are written to its file.
        """
        segments = []
        for segment in self.segments:
            is_at_rest = segment.is_closed and segment.next_offset < self.flushed_offset
            if (
                not is_at_rest
                or self.progress.is_live(segment.journal_lap)
                or segment.next_offset > end_offset
            ):
                break
            segments.append(segment)
        return segments

    def is_at_rest(self, segment: Segment) -> bool:
        """Whether its file changes no more: all of it is synced, and no journal has bytes of it."""
        return (
            segment.is_closed
            and segment.next_offset <= self.flushed_offset
            and not self.progress.is_live(segment.journal_lap)
        )

    def kept_batches(self) -> frozenset[int]:
        """Base offsets of batches that must survive, if only empty: the batches in producers'
        windows, so that retries are recognised without a snapshot (I18), and each epoch's first
        batch (I11).
        """
        starts = [start for _, start in self.epochs.entries()]
        return frozenset((*self.producers.window_offsets(), *starts))

    def begin_swap(self, old: Sequence[Segment], new: Segment) -> SegmentSwap:
        """Announce that `new` replaces these segments, which are pinned."""
        self.settle_swap()
        self.swap = SegmentSwap(self._disk, self._files, self.segments, old, new)
        return self.swap

    def switch(self, swap: SegmentSwap) -> bool:
        """Give readers the new segment; False if the log was cut in between."""
        if not swap.switch():
            return False
        self.progress.changes.keep_only(set(self.segments))
        self.size_bytes = self.segments.size_bytes()
        return True

    def settle_swap(self) -> None:
        """Finish or undo a pending swap before the log is cut or closed: see `segment_swap`."""
        if self.swap is not None:
            self.swap.settle()
            self.swap = None

    # --- flushing --------------------------------------------------------------------------------

    def take_flush_point(self) -> FlushPoint | None:
        return None if self.is_closed else self.progress.take_flush_point()

    def take_sync_point(self) -> FlushPoint | None:
        return None if self.is_closed else self.progress.take_sync_point()

    def flushed(self, point: FlushPoint) -> None:
        self.progress.flushed(point)

    def close(self) -> None:
        self.is_closed = True
        self.cuts += 1
        self.segments.forget()


def _active_ms_max(config: LogConfig) -> int:
    """Only closed segments are compacted, so `max.compaction.lag.ms` may force an earlier roll."""
    if config.compacts and config.max_compaction_lag_ms != FOREVER:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


def _first_seen_ms(segment: Segment, now_ms: int) -> int:
    """When a segment of an earlier process got its first batch, if its timestamp is plausible."""
    timestamp = segment.first_timestamp()
    return timestamp if 0 <= timestamp <= now_ms else now_ms
