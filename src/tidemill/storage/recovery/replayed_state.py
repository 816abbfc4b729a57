"""Leader epochs and producers of a log that is being recovered, from their files and the batches.

Leader epochs below the recovery point come from their file, if it agrees with the batches.
Producers come from the newest snapshot that is not past the end, and a replay of what follows it. A
batch does not say when it was appended, and its records have the times of their client. So a replay
takes the time when the segment last changed, or a later one that the batch has: never before the
append, so that no live producer expires, and the same for every replay of what was flushed.
Files that are lost, damaged or out of date are rebuilt from the batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tidemill.core.errors import KafkaError, StorageFault
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import (
    LEADER_EPOCHS_NAME,
    SNAPSHOT_SUFFIX,
    offset_path,
)
from tidemill.storage.recovery.segment_files import SegmentFile, try_read_epochs
from tidemill.storage.recovery.segment_walk import SegmentWalk
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.producer_snapshots import ProducerSnapshots
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.wire.batch import BatchHeader, verify
from tidemill.wire.transaction_marker import TransactionMarker, read_marker

__all__ = ["ReplayedState"]


@final
class ReplayedState:
    """What recovery learns about the epochs and producers of one log."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        directory: str,
        walk: SegmentWalk,
        *,
        names: Sequence[str],
        now_ms: int,
    ) -> None:
        """`names` are those in the log's directory, before anything was cut."""
        self._disk = disk
        self._files = files
        self._directory = directory
        self._walk = walk
        self._names = names
        self._now_ms = now_ms
        self.last_flushed: BatchHeader | None = None
        """The last batch below the recovery point that the seek saw."""
        self._tail_epochs: list[tuple[int, int]] = []
        """Leader epochs of the scanned batches, each with the offset of its first batch."""
        self.changed_ms: dict[str, int] = {}
        """When each segment last changed, as far as it is known: rewriting dates it anew."""

    def note_scanned(self, header: BatchHeader) -> None:
        """A batch above the recovery point stays."""
        epoch = header.partition_leader_epoch
        if not self._tail_epochs or self._tail_epochs[-1][0] != epoch:
            self._tail_epochs.append((epoch, header.base_offset))

    def epochs(self) -> LeaderEpochs:
        """The leader epochs of what is left; stored if their file does not say the same."""
        try:
            stored = try_read_epochs(self._disk, self._directory, self._names)
        except StorageFault:
            stored = None
        epochs = None
        if stored is not None:
            epochs = self._try_extend(LeaderEpochs(stored.entries()))
        if epochs is None:
            if self._walk.segments[0].base_offset < self._walk.recovery_point:
                self._walk.report.rebuilt.append(LEADER_EPOCHS_NAME)
            epochs = self._epochs_from_batches()
        epochs.truncate_from_start(self._walk.log_start_offset)
        if stored is None or stored.entries() != epochs.entries():
            path = f"{self._directory}/{LEADER_EPOCHS_NAME}"
            self._disk.write_file_atomically(path, epochs.encode())
        return epochs

    def _try_extend(self, epochs: LeaderEpochs) -> LeaderEpochs | None:
        """The stored epochs plus the scanned ones, if they agree with the batches."""
        epochs.truncate_from_end(self._walk.recovery_point)
        last = self.last_flushed
        if last is not None and epochs.epoch_at(last.base_offset) != last.partition_leader_epoch:
            return None
        for epoch, start_offset in self._tail_epochs:
            if epoch < epochs.latest:
                return None
            epochs.assign(epoch, start_offset)
        return epochs

    def _epochs_from_batches(self) -> LeaderEpochs:
        epochs = LeaderEpochs()
        for header in self._walk.all_headers(self._walk.segments[0].base_offset):
            if header.partition_leader_epoch > epochs.latest:
                epochs.assign(header.partition_leader_epoch, header.base_offset)
        return epochs

    def producers(self, snapshots: ProducerSnapshots) -> ProducerStates:
        """Replayed from the newest snapshot; stored if retention could drop replayed segments."""
        found = snapshots.try_load_newest(self._walk.log_end_offset)
        if found is None and snapshots.newest_offset >= 0:
            self._walk.report.rebuilt.append("producers")
        producers, offset = found or (ProducerStates(), self._walk.segments[0].base_offset)
        for segment in self._walk.segments[self._walk.place_of(offset) :]:
            changed_ms = self._last_changed_ms(segment)
            for position, header in self._walk.batches_of(segment, offset):
                appended_ms = min(max(changed_ms, header.max_timestamp), self._now_ms)
                if not header.is_control:
                    producers.update(header, appended_ms)
                    continue
                marker = self._try_read_marker(segment, position, header)
                if marker is not None:
                    producers.end_transaction(header, marker, appended_ms)
        is_behind = self._walk.report.scanned_bytes or offset < self._walk.segments[-1].base_offset
        if is_behind and producers.fact_count and offset != self._walk.log_end_offset:
            path = offset_path(self._directory, self._walk.log_end_offset, SNAPSHOT_SUFFIX)
            self._disk.write_file_atomically(path, producers.encode(self._walk.log_end_offset))
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
            self._walk.note_damage(segment, position, header.base_offset, error.detail)
            return None

    def _last_changed_ms(self, segment: SegmentFile) -> int:
        known = self.changed_ms.get(segment.path)
        return self._disk.changed_ms(segment.path) if known is None else known
