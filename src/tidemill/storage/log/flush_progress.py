"""HOT PATH. How far one log is on disk: a flush point is taken and completed in every round.

    stored         producers and indexes too, so that the next start is short: see `is_stored`
    synced         below `synced_offset`, in synced files
    flushed        below `flushed_offset`, in synced files or in the journal

    synced_offset <= flushed_offset <= log end offset

Each offset rises when a flush that covered the bytes below it is completed, and falls when the log
is cut. What a flush has to cover is in `unflushed_changes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, final

from tidemill.storage.files.disk import Disk
from tidemill.storage.files.live_laps import LiveLaps
from tidemill.storage.log.flush_point import FlushPoint
from tidemill.storage.log.segment import Segment
from tidemill.storage.log.segments import Segments
from tidemill.storage.log.unflushed_changes import FlushWork, UnflushedChanges
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.producer_snapshots import ProducerSnapshots
from tidemill.storage.state.producer_state import ProducerStates

__all__ = ["FlushProgress"]

_NOWHERE: Final = -1


@final
class FlushProgress:
    """The offsets up to which one log is on disk, and the flushes that raise them."""

    __slots__ = (
        "_disk",
        "_epochs",
        "_journal_lap",
        "_live_laps",
        "_producers",
        "_segments",
        "_stored_end_offset",
        "changes",
        "flushed_offset",
        "journal_name",
        "snapshots",
        "synced_offset",
    )

    def __init__(
        self,
        disk: Disk,
        segments: Segments,
        *,
        epochs: LeaderEpochs,
        producers: ProducerStates,
        snapshots: ProducerSnapshots,
        flushed_offset: int,
        is_stored: bool,
    ) -> None:
        """`segments`, `epochs` and `producers` are those of the log, which changes them."""
        self._disk = disk
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self.snapshots = snapshots
        self.changes = UnflushedChanges(disk, segments.directory, epochs_version=epochs.version)
        self.flushed_offset = flushed_offset
        self.synced_offset = flushed_offset
        """Everything below it is in synced files; flushed bytes above it are in the journal."""
        self.journal_name = b""
        """How the journal calls this log; empty: it is not journaled."""
        self._journal_lap = 0
        """The last lap of the journal that has bytes of this log; also of segments that left it."""
        self._live_laps: LiveLaps | None = None
        self._stored_end_offset = segments.active.next_offset if is_stored else _NOWHERE
        """Where the log ended when its producers and indexes were last stored."""

    # --- the journal ------------------------------------------------------------------------------

    def use_journal(self, name: bytes, live_laps: LiveLaps) -> None:
        """From now on flushes of this log may go to the journal."""
        self.journal_name = name
        self._live_laps = live_laps

    @property
    def is_in_journal(self) -> bool:
        """Whether a crash would write bytes from the journal over a file of this log.

        Also over one whose name a restart of the log would use again.
        """
        return self.is_live(self._journal_lap)

    def is_live(self, lap: int) -> bool:
        """Whether a crash would replay this lap of the journal."""
        return self._live_laps is not None and lap >= self._live_laps.oldest

    # --- flushes ----------------------------------------------------------------------------------

    def take_flush_point(self) -> FlushPoint | None:
        """As `PartitionLog.take_flush_point`."""
        if self.flushed_offset >= self._segments.active.next_offset:
            return None
        return self._take_point(self.journal_name)

    def take_sync_point(self) -> FlushPoint | None:
        """As `PartitionLog.take_sync_point`."""
        if self.synced_offset >= self._segments.active.next_offset:
            return None
        return self._take_point()

    def take_checkpoint(self) -> FlushPoint | None:
        """Like `take_flush_point`, plus everything that makes the next start short.

        Its `sync` also stores the active segment's index and a producer snapshot of the log's end.
        None if nothing changed since the last time.
        """
        active = self._segments.active
        log_end_offset = active.next_offset
        if self.snapshots.newest_offset != log_end_offset:
            self.snapshots.take(self._producers, log_end_offset)
            self.changes.want_indexed(active)
        is_behind = self.snapshots.pending_offsets() or self.changes.has_unindexed
        if not is_behind and self.synced_offset >= log_end_offset:
            self._stored_end_offset = log_end_offset
            return None
        return self._take_point()

    def _take_point(self, journal_name: bytes = b"") -> FlushPoint:
        log_end_offset = self._segments.active.next_offset
        work = self.changes.take(self._epochs, self.snapshots)
        if work.has_rest:
            return FlushPoint(log_end_offset, work.tails, work.finish, work)
        return FlushPoint(log_end_offset, work.tails, token=work, journal_name=journal_name)

    def flushed(self, point: FlushPoint) -> None:
        """As `PartitionLog.flushed`."""
        work = point.token
        assert isinstance(work, FlushWork)
        if point.journal_lap:
            self._journal_lap = point.journal_lap
            if self.changes.complete_in_journal(work, point.journal_lap):
                self.flushed_offset = max(self.flushed_offset, point.log_end_offset)
        elif self.changes.complete(work, point.log_end_offset):
            self.flushed_offset = max(self.flushed_offset, point.log_end_offset)
            self.synced_offset = max(self.synced_offset, point.log_end_offset)
            if work.contents_stored:
                self.snapshots.written(work.snapshot_offsets)
                if self.snapshots.has_stored(point.log_end_offset):
                    self._stored_end_offset = point.log_end_offset

    # --- what a start would find ------------------------------------------------------------------

    @property
    def is_stored(self) -> bool:
        """Whether producers and indexes are on disk up to the log's end."""
        return self._stored_end_offset == self._segments.active.next_offset

    @property
    def stored_closed_end(self) -> int:
        """Up to here segments are closed and flushed, and their producers are stored apart."""
        active_base = self._segments.active.base_offset
        if self.flushed_offset <= active_base:
            return _NOWHERE
        return self.snapshots.covered_end(active_base)

    # --- changes of the log -----------------------------------------------------------------------

    def rolled(self, closed: Segment) -> None:
        """A new segment was started: the next flush stores the old one's index and a snapshot."""
        self.changes.note_rolled(closed)
        self.snapshots.take(self._producers, self._segments.active.base_offset)

    def start_advanced(self, offset: int) -> None:
        """The log starts here from now on: nothing below needs a flush."""
        self.flushed_offset = max(self.flushed_offset, offset)

    def cut_to(
        self, end_offset: int, *, restarts: bool
    ) -> tuple[list[Callable[[], None]], Callable[[], None]]:
        """Segments, epochs and producers are cut; flushes that were taken before do not count.

        Returns what unlinks the snapshots of what was cut, and what stores the epochs left.
        """
        self.changes.start_generation()
        self.changes.keep_only(set(self._segments))
        self.flushed_offset = end_offset if restarts else min(self.flushed_offset, end_offset)
        self.synced_offset = end_offset if restarts else min(self.synced_offset, end_offset)
        self._stored_end_offset = _NOWHERE
        paths = self.snapshots.forget_after(-1 if restarts else end_offset)
        unlinks: list[Callable[[], None]] = [partial(self._disk.unlink, path) for path in paths]
        return unlinks, self.changes.epochs_writer(self._epochs)
