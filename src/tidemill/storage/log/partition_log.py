"""HOT PATH. One partition's log in its own directory: a list of segments, the last one growing.

Budget: an append takes 8 us and a tail read 10 us, besides one system call each.

Theory of operation. Everything here runs on the event loop, except what is handed out to be run by
`Disk.run`: a slice's `load`, a flush point's `sync`, the searches by time, which only read, and the
steps of a drop (`segment_drop`) and of a cut (`log_cut`) that touch files.

Bytes reach the page cache by `append` and the disk by a flush (see `unflushed_changes`).

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
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from tidemill.core.errors import invariant
from tidemill.core.limits import SEGMENTS_PER_DROP
from tidemill.storage.files.disk import Buffer, Disk, DiskFile
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.live_laps import LiveLaps
from tidemill.storage.index.aborted_index import AbortedTransaction
from tidemill.storage.index.segment_index import SegmentIndex
from tidemill.storage.log.flush_point import FlushPoint
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
from tidemill.storage.log.segment_drop import Ages, SegmentDrop, choose, look_at_ages
from tidemill.storage.log.segment_swap import SegmentSwap
from tidemill.storage.log.segments import Segments
from tidemill.storage.log.unflushed_changes import FlushWork, UnflushedChanges
from tidemill.storage.state.clean_point import CleanPoint
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.producer_snapshots import ProducerSnapshots
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.wire.batch import NO_TIMESTAMP, BatchHeader
from tidemill.wire.marks import VEILED

__all__ = ["BeforeCut", "FilePartitionLog", "LoadedState"]

BeforeCut = Callable[[int], Callable[[], None]]
"""Takes the offset that is left; returns what makes the recovery point durable, for a thread."""

_NOWHERE: Final = -1


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
        self.flushed_offset = state.flushed_offset
        self.synced_offset = state.flushed_offset
        """Everything below it is in synced files; flushed bytes above it are in the journal."""
        self.journal_name = b""
        """How the journal calls this log; empty: it is not journaled."""
        self._journal_lap = 0
        """The last lap of the journal that has bytes of this log; also of segments that left it."""
        self._live_laps: LiveLaps | None = None
        self.size_bytes = self.segments.size_bytes()
        self.epochs = state.epochs
        self._unflushed = UnflushedChanges(disk, directory, epochs_version=state.epochs.version)
        self.producers = state.producers
        self._snapshots = ProducerSnapshots(disk, directory, state.snapshot_offsets)
        self._stored_end_offset = self.log_end_offset if state.is_stored else _NOWHERE
        """Where the log ended when its producers and indexes were last stored."""
        self._active_since_ms = NO_TIMESTAMP
        """When the active segment got its first batch; decides when the segment rolls by time."""
        self._last_append_ms = 0
        self._deleted: list[tuple[int, str]] = []
        """Files that left the log: when to unlink each, and its path."""
        self._swap: SegmentSwap | None = None
        self.clean_point = CleanPoint(disk, directory)
        self.cuts = 0
        """Rises when the log is cut or closed: facts gathered before that may no longer hold."""
        self.is_closed = False
        self.is_being_cut = False
        """A cut has begun and not ended: the files hold more than the log says."""

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
        log._unflushed.note_created()
        return log

    def set_config(self, config: LogConfig) -> None:
        self.config = config

    def use_journal(self, name: bytes, live_laps: LiveLaps) -> None:
        """From now on flushes of this log may go to the journal."""
        self.journal_name = name
        self._live_laps = live_laps

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
            self._roll()
            segment = self.segments.active
        if not segment.size_bytes:
            self._active_since_ms = now_ms
        segment.append(chunks, headers)
        self._unflushed.dirty[segment] = None
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

    def _roll(self) -> None:
        """Start a new segment; the next flush stores the old one's index and a snapshot."""
        closed = self.segments.active
        self.segments.start(
            self.log_end_offset, index_interval_bytes=self.config.index_interval_bytes
        )
        closed.fallback_timestamp_ms = self._last_append_ms
        self._unflushed.note_rolled(closed)
        self._snapshots.take(self.producers, self.log_end_offset)

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
        return segment.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one
        )

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
            snapshots=self._snapshots.copy(),
            begin=self._begin_cut,
            end=self._end_cut,
            is_closed=lambda: self.is_closed,
            is_in_journal=lambda: not self.is_closed and self.is_in_journal,
        )

    def _begin_cut(self, cut: FileLogCut) -> bool:
        end = cut.end_offset
        invariant(
            not self.is_in_journal or (end >= self.flushed_offset and not cut.restarts),
            "a cut would leave bytes in the journal that are cut from their segment",
        )
        if cut.head is not None and not cut.head.begin():
            return False
        before = self._steps_before_cut(cut)
        self.is_being_cut = True
        self.cuts += 1
        self._unflushed.start_generation()
        started = None
        if cut.restarts:
            interval_bytes = self.config.index_interval_bytes
            started = self.segments.planned(end, index_interval_bytes=interval_bytes)
        self.segments.reset([started] if started is not None else cut.kept)
        self.log_end_offset = end
        self.log_start_offset = end if cut.restarts else min(self.log_start_offset, end)
        self.flushed_offset = end if cut.restarts else min(self.flushed_offset, end)
        self.synced_offset = end if cut.restarts else min(self.synced_offset, end)
        self.size_bytes = self.segments.size_bytes()
        self.epochs.truncate_from_end(end)
        if cut.restarts:
            self.epochs.clear()
        if cut.producers is not None:
            self.producers.replace(cut.producers)
        snapshots = self._snapshots.forget_after(-1 if cut.restarts else end)
        self._unflushed.keep_only(set(self.segments))
        self._active_since_ms = NO_TIMESTAMP
        self._stored_end_offset = _NOWHERE
        unlinks = [partial(self._disk.unlink, path) for path in snapshots]
        store_epochs = self._unflushed.epochs_writer(self.epochs)
        if cut.restarts:  # a start that finds no segment looks at snapshots for the end of the log
            sync = partial(self._disk.sync_directory, self.directory)
            cut.begun(before=[*before, *unlinks, sync], started=started, after=[store_epochs])
        else:
            cut.begun(before=before, started=None, after=[*unlinks, store_epochs])
        return True

    def _steps_before_cut(self, cut: FileLogCut) -> list[Callable[[], None]]:
        """What must be durable before a byte is cut."""
        steps: list[Callable[[], None]] = []
        if self._swap is not None:
            steps.append(self._swap.settle)
            self._swap = None
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
            self.flushed_offset = max(self.flushed_offset, offset)
            self.epochs.truncate_from_start(offset)

    # --- dropping segments from the front ---------------------------------------------------------

    def look_at_ages(self, now_ms: int, segments_max: int) -> Ages:
        """The first step of retention: for `Disk.run`. See `segment_drop`."""
        return look_at_ages(
            self.segments.snapshot(), self.config, now_ms=now_ms, segments_max=segments_max
        )

    def plan_drop(
        self, ages: Ages, *, now_ms: int, high_watermark: int, segments_max: int
    ) -> SegmentDrop | None:
        """The segments that go now, and files that are due to be unlinked; None if none are.

        Raises StorageFault; then nothing changed.
        """
        if self.is_being_cut:
            return None
        segments = choose(
            self.segments,
            self.config,
            ages,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            end_offset=high_watermark,
            size_bytes=self.size_bytes,
            segments_max=segments_max,
        )
        rolls = len(segments) == len(self.segments)
        if rolls:
            self._roll()
        obsolete = [entry for entry in self._deleted if entry[0] <= now_ms]
        if not segments and not obsolete:
            return None
        self._deleted = [entry for entry in self._deleted if entry[0] > now_ms]
        self._unflushed.forget_indexes(segments)
        swap, self._swap = self._swap, None
        return SegmentDrop(
            self._disk,
            self.directory,
            segments,
            obsolete=obsolete,
            has_new_segment=rolls,
            swap=swap,
        )

    def expired(self, *, now_ms: int, end_offset: int) -> tuple[int, int]:
        segments = self.segments.snapshot()
        found = choose(
            segments,
            self.config,
            self.look_at_ages(now_ms, SEGMENTS_PER_DROP),
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            end_offset=end_offset,
            size_bytes=self.size_bytes,
            segments_max=SEGMENTS_PER_DROP,
        )
        end = found[-1].next_offset if found else self.log_start_offset
        return end, sum(segment.size_bytes for segment in found)

    def end_drop(self, drop: SegmentDrop, now_ms: int) -> int:
        """`drop` ran, perhaps not to its end; the number of segments that are gone."""
        self._deleted += drop.obsolete
        self._swap = drop.swap
        if not drop.renamed or self.is_closed:
            return 0
        for segment, path in drop.renamed:
            self.size_bytes -= segment.size_bytes
            self._deleted.append((now_ms + self.config.delete_delay_ms, path))
        self.segments.remove_oldest(len(drop.renamed))
        self._unflushed.keep_only(set(self.segments))
        self.advance_start(self.segments.oldest.base_offset)
        return len(drop.renamed)

    def apply_retention(self, *, now_ms: int, high_watermark: int) -> int:
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
                or self._is_live(segment.journal_lap)
                or segment.next_offset > end_offset
            ):
                break
            segments.append(segment)
        return segments

    def kept_batches(self) -> frozenset[int]:
        """Base offsets of batches that must survive, if only empty: the batches in producers'
        windows, so that retries are recognised without a snapshot (I18), and each epoch's first
        batch (I11).
        """
        starts = [start for _, start in self.epochs.entries()]
        return frozenset((*self.producers.window_offsets(), *starts))

    def adopt_segment(
        self,
        *,
        base_offset: int,
        next_offset: int,
        index: SegmentIndex,
        index_interval_bytes: int,
        file: DiskFile,
        size_bytes: int,
    ) -> Segment:
        """A segment that is written but not yet part of the log, for `begin_swap`."""
        return Segment.adopt(
            self._disk,
            self._files,
            self.directory,
            base_offset=base_offset,
            next_offset=next_offset,
            index=index,
            index_interval_bytes=index_interval_bytes,
            file=file,
            size_bytes=size_bytes,
        )

    def begin_swap(self, old: Sequence[Segment], new: Segment) -> SegmentSwap:
        """Announce that `new` replaces these segments, which are pinned."""
        self.settle_swap()
        self._swap = SegmentSwap(self._disk, self._files, self.segments, old, new)
        return self._swap

    def switch(self, swap: SegmentSwap) -> bool:
        """Give readers the new segment; False if the log was cut in between."""
        if not swap.switch():
            return False
        self._unflushed.keep_only(set(self.segments))
        self.size_bytes = self.segments.size_bytes()
        return True

    def settle_swap(self) -> None:
        """Finish or undo a pending swap before the log is cut or closed: see `segment_swap`."""
        if self._swap is not None:
            self._swap.settle()
            self._swap = None

    # --- flushing --------------------------------------------------------------------------------

    def take_flush_point(self) -> FlushPoint | None:
        if self.is_closed or self.flushed_offset >= self.log_end_offset:
            return None
        return self._take_point(self.journal_name)

    def take_sync_point(self) -> FlushPoint | None:
        if self.is_closed or self.synced_offset >= self.log_end_offset:
            return None
        return self._take_point()

    @property
    def is_in_journal(self) -> bool:
        """Whether a crash would write bytes from the journal over a file of this log.

        Also over one whose name a restart of the log would use again.
        """
        return self._is_live(self._journal_lap)

    def _is_live(self, lap: int) -> bool:
        return self._live_laps is not None and lap >= self._live_laps.oldest

    @property
    def is_stored(self) -> bool:
        """Whether producers and indexes are on disk up to the log's end."""
        return self._stored_end_offset == self.log_end_offset

    @property
    def stored_closed_end(self) -> int:
        """Up to here segments are closed and flushed, and their producers are stored apart."""
        active_base = self.segments.active.base_offset
        if self.flushed_offset <= active_base:
            return _NOWHERE
        return self._snapshots.covered_end(active_base)

    def take_checkpoint(self) -> FlushPoint | None:
        """Like `take_flush_point`, plus everything that makes the next start short.

        Its `sync` also stores the active segment's index and a producer snapshot of the log's end.
        None if nothing changed since the last time.
        """
        if self._snapshots.newest_offset != self.log_end_offset:
            self._snapshots.take(self.producers, self.log_end_offset)
            self._unflushed.want_indexed(self.segments.active)
        is_behind = self._snapshots.pending_offsets() or self._unflushed.has_unindexed
        if not is_behind and self.synced_offset >= self.log_end_offset:
            self._stored_end_offset = self.log_end_offset
            return None
        return self._take_point()

    def _take_point(self, journal_name: bytes = b"") -> FlushPoint:
        work = self._unflushed.take(self.epochs, self._snapshots)
        if work.has_rest:
            return FlushPoint(self.log_end_offset, work.tails, work.finish, work)
        return FlushPoint(self.log_end_offset, work.tails, token=work, journal_name=journal_name)

    def flushed(self, point: FlushPoint) -> None:
        work = point.token
        assert isinstance(work, FlushWork)
        if point.journal_lap:
            self._journal_lap = point.journal_lap
            if self._unflushed.complete_in_journal(work, point.journal_lap):
                self.flushed_offset = max(self.flushed_offset, point.log_end_offset)
        elif self._unflushed.complete(work, point.log_end_offset):
            self.flushed_offset = max(self.flushed_offset, point.log_end_offset)
            self.synced_offset = max(self.synced_offset, point.log_end_offset)
            if work.contents_stored:
                self._snapshots.written(work.snapshot_offsets)
                if self._snapshots.has_stored(point.log_end_offset):
                    self._stored_end_offset = point.log_end_offset

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
