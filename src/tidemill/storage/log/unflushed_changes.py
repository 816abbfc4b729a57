"""What one log has not yet written to disk, and the flush that writes it.

`FlushWork` is one flush, captured as plain files and bytes: the loop builds it and a thread runs
it, so it knows no log. The order matters. First the batches (`tails`), then (`finish`) the names of
new files. What follows describes batches that are durable by then: leader epochs and producer
snapshots, which are replaced whole, and blocks for the index files, which are not synced because
they are never needed.

A flush that covers nothing but batches may write them to the journal instead of syncing their
files. The files stay dirty, and what the next flush has to cover begins after what was promised.

A flush that was overtaken by a truncation proves nothing about the bytes written since. Each flush
carries the generation of the log it was taken from, and counts only in that generation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import final

from tidemill.core.errors import DiskFull
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.log_file_names import LEADER_EPOCHS_NAME
from tidemill.storage.index.segment_index import IndexBlock, write_block
from tidemill.storage.log.flush_point import UnsyncedTail
from tidemill.storage.log.segment import Segment
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.producer_snapshots import ProducerSnapshots

__all__ = ["FlushWork", "UnflushedChanges"]


@final
@dataclass(slots=True, kw_only=True)
class FlushWork:
    """The files and bytes of one flush."""

    disk: Disk
    generation: int
    tails: Sequence[UnsyncedTail]
    """Of the segments with unsynced bytes, in the order of `segments`."""
    segments: Sequence[Segment]
    directories: Sequence[str]
    """Directories with unsynced names."""
    contents: Sequence[tuple[str, Callable[[], bytes]]]
    """Small files to replace: path and what encodes the content, which may take milliseconds."""
    index_blocks: Sequence[IndexBlock]
    obsolete: Sequence[str]
    """Paths that the new contents make superfluous."""
    epochs_version: int
    snapshot_offsets: Sequence[int]
    contents_stored: bool = False
    """Whether the small files are durable; on a full disk they wait for the next flush."""
    blocks_written: bool = False
    """The same for the index blocks."""

    @property
    def has_rest(self) -> bool:
        """Whether there is more to do than to sync segments."""
        return bool(self.directories or self.contents or self.index_blocks or self.obsolete)

    def finish(self) -> None:
        """The segments are synced: do the rest.

        Raises StorageFault; then nothing that was captured counts as durable.
        """
        for directory in self.directories:
            self.disk.sync_directory(directory)
        with suppress(DiskFull):  # recovery rebuilds the small files from the batches (R12)
            self._store_contents()

    def _store_contents(self) -> None:
        for path, encode in self.contents:
            self.disk.write_file_atomically(path, encode())
        for path in self.obsolete:
            self.disk.unlink(path)
        self.contents_stored = True
        for block in self.index_blocks:
            write_block(self.disk, block)
        self.blocks_written = True


@final
class UnflushedChanges:
    """Dirty segments, new names, and small files that are out of date."""

    __slots__ = (
        "_directories",
        "_directory",
        "_disk",
        "_epochs_version",
        "_generation",
        "_late_blocks",
        "_unindexed",
        "dirty",
    )

    def __init__(self, disk: Disk, directory: str, *, epochs_version: int) -> None:
        self._disk = disk
        self._directory = directory
        self._epochs_version = epochs_version
        """The version of the epochs in their file."""
        self._generation = 0
        self.dirty: dict[Segment, None] = {}
        """Segments with unsynced bytes."""
        self._unindexed: list[Segment] = []
        """Segments whose index files must be brought up to date."""
        self._late_blocks: list[IndexBlock] = []
        """Blocks that found no room on a full disk; a later block is of no use without them."""
        self._directories: tuple[str, ...] = ()
        """Directories with unsynced names; a new tuple for every new name."""

    @property
    def has_unindexed(self) -> bool:
        return bool(self._unindexed or self._late_blocks)

    def note_created(self) -> None:
        """The log's directory may be new, and its name is durable with a sync of the parent."""
        self._directories = (self._directory, self._directory.rpartition("/")[0] or ".")

    def note_rolled(self, closed: Segment) -> None:
        self._directories = (self._directory, *self._directories[1:])
        self._unindexed.append(closed)

    def want_indexed(self, segment: Segment) -> None:
        if segment not in self._unindexed:
            self._unindexed.append(segment)

    def forget_indexes(self, segments: Collection[Segment]) -> None:
        """These are about to leave the log: no flush writes their index files again."""
        self._unindexed = [segment for segment in self._unindexed if segment not in segments]
        self._late_blocks = []

    def keep_only(self, segments: Collection[Segment]) -> None:
        """Forget all other segments: they left the log."""
        self.dirty = {segment: None for segment in self.dirty if segment in segments}
        self._unindexed = [segment for segment in self._unindexed if segment in segments]
        self._late_blocks = []  # some may be of a segment that left: loading rebuilds the others

    def start_generation(self) -> None:
        """The log is about to be cut: flushes taken before this no longer count."""
        self._generation += 1

    def epochs_writer(self, epochs: LeaderEpochs) -> partial[None]:
        """Stores the epochs as they are now, for a cut; a flush need not do it again."""
        self._epochs_version = epochs.version
        return partial(self._disk.write_file_atomically, self._epochs_path, epochs.encode())

    def take(self, epochs: LeaderEpochs, snapshots: ProducerSnapshots) -> FlushWork:
        """Everything that is out of date, as it is now."""
        has_snapshots = snapshots.has_pending
        contents = snapshots.contents() if has_snapshots else []
        if epochs.version != self._epochs_version:
            contents.append((self._epochs_path, LeaderEpochs(epochs.entries()).encode))
        unindexed, self._unindexed = self._unindexed, []
        late_blocks, self._late_blocks = self._late_blocks, []
        new_blocks = [block for segment in unindexed for block in segment.take_index_blocks()]
        # One without an open file was cut durably, or is leaving the log.
        segments = [segment for segment in self.dirty if segment.dirty_file is not None]
        work = FlushWork(
            disk=self._disk,
            generation=self._generation,
            tails=[segment.unsynced_tail() for segment in segments],
            segments=segments,
            directories=self._directories,
            contents=contents,
            index_blocks=[*late_blocks, *new_blocks],
            obsolete=snapshots.obsolete() if has_snapshots else [],
            epochs_version=epochs.version,
            snapshot_offsets=snapshots.pending_offsets() if has_snapshots else [],
        )
        work.contents_stored = work.blocks_written = not work.has_rest
        return work

    def complete_in_journal(self, work: FlushWork, lap: int) -> bool:
        """The journal has the bytes of `work`, the segments stay dirty. False: as `complete`."""
        if work.generation != self._generation:
            return False
        for segment, tail in zip(work.segments, work.tails, strict=True):
            segment.promised_bytes = tail.end
            segment.journal_lap = lap
        return True

    def complete(self, work: FlushWork, log_end_offset: int) -> bool:
        """`work` succeeded and covered all below `log_end_offset`; False if it does not count."""
        if work.generation != self._generation:
            return False
        for segment, tail in zip(work.segments, work.tails, strict=True):
            segment.promised_bytes = tail.end
        for segment in list(self.dirty):
            if segment.next_offset <= log_end_offset:
                segment.dirty_file = None  # the cache may close it
                del self.dirty[segment]
        if self._directories is work.directories:
            self._directories = ()
        if work.contents_stored:
            self._epochs_version = work.epochs_version
        if not work.blocks_written:
            self._late_blocks = [*work.index_blocks, *self._late_blocks]
        return True

    @property
    def _epochs_path(self) -> str:
        return f"{self._directory}/{LEADER_EPOCHS_NAME}"
