"""Drops old data: a walk over all logs of a directory, a few at a time.

Eight thousand logs are too many for one turn of the event loop, and each segment that goes costs a
sync. A pass takes the logs in slices and finds logs that were created or deleted meanwhile in its
next round. The decisions are made on the loop, everything that waits for the disk runs in a thread:

    slice = next_slice(...)                       on the loop
    slice.look                                    in a thread
    slice.plan: False when the slice is done      on the loop
    slice.drop                                    in a thread
    slice.finish, then look again                 on the loop

A log that fails is left to the next pass: on a full disk the others may make room for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import SEGMENTS_PER_DROP
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment_drop import Ages, SegmentDrop

__all__ = ["RetentionPass", "RetentionSlice"]


@final
class RetentionSlice:
    """A few logs, until nothing more of them may go."""

    def __init__(
        self,
        directory: LogDirectory,
        logs: dict[TopicPartition, FilePartitionLog],
        *,
        droppable_offset_of: Callable[[TopicPartition], int],
        now_ms: int,
        is_last: bool,
    ) -> None:
        self._directory = directory
        self._left = logs
        self._droppable_offset_of = droppable_offset_of
        self._now_ms = now_ms
        self._ages: dict[FilePartitionLog, tuple[int, Ages]] = {}
        """With the number of cuts by then: a segment that is cut may grow again."""
        self._drops: dict[TopicPartition, tuple[FilePartitionLog, SegmentDrop]] = {}
        self.is_last = is_last
        """The pass has seen every log after this slice."""
        self.segments_dropped = 0
        self.faults: dict[TopicPartition, StorageFault] = {}
        """Logs that failed, and are left to the next pass; the others go on."""

    def look(self) -> None:
        """Find out how old the oldest segments are: for `Disk.run`."""
        for partition, log in self._left.items():
            cuts = log.cuts
            with self._noting_faults(partition):
                self._ages[log] = cuts, log.front.look_at_ages(self._now_ms, SEGMENTS_PER_DROP)

    @contextmanager
    def _noting_faults(self, partition: TopicPartition) -> Iterator[None]:
        try:
            yield
        except StorageFault as fault:
            self.faults[partition] = fault

    def plan(self) -> bool:
        """Decide what goes now; False if nothing more does."""
        segments_left = SEGMENTS_PER_DROP
        for partition, log in list(self._left.items()):
            if segments_left <= 0:
                break
            drop = None
            with self._noting_faults(partition):
                drop = self._try_plan(partition, log, segments_left)
            if drop is None:
                del self._left[partition]
            else:
                self._drops[partition] = log, drop
                segments_left -= drop.cost
        return bool(self._drops)

    def _try_plan(
        self, partition: TopicPartition, log: FilePartitionLog, segments_max: int
    ) -> SegmentDrop | None:
        if self._directory.get(partition) is not log or partition in self.faults:
            return None  # deleted meanwhile, or for the next pass
        cuts, ages = self._ages[log]
        if cuts != log.cuts:
            return None
        return self._directory.plan_drop(
            log,
            ages,
            now_ms=self._now_ms,
            high_watermark=self._droppable_offset_of(partition),
            segments_max=segments_max,
        )

    def drop(self) -> None:
        """Take the files out of the logs: for `Disk.run`."""
        for partition, (_, drop) in self._drops.items():
            with self._noting_faults(partition):
                drop.run()

    def finish(self) -> list[TopicPartition]:
        """`drop` has ended, well or not: readers no longer find what it took out, in these logs."""
        moved: list[TopicPartition] = []
        for partition, (log, drop) in self._drops.items():
            gone = log.front.end_drop(drop, self._now_ms)
            self.segments_dropped += gone
            if gone:
                moved.append(partition)
        self._drops = {}
        return moved


@final
class RetentionPass:
    """Applies retention to every log of one directory, slice by slice."""

    def __init__(
        self, directory: LogDirectory, droppable_offset_of: Callable[[TopicPartition], int]
    ) -> None:
        self._directory = directory
        self._droppable_offset_of = droppable_offset_of
        self._left: deque[TopicPartition] = deque()

    def next_slice(self, now_ms: int, logs_max: int) -> RetentionSlice:
        """The next logs of this pass, or the first ones of a new pass."""
        if not self._left:
            self._left.extend(self._directory.logs())
        logs: dict[TopicPartition, FilePartitionLog] = {}
        for _ in range(min(logs_max, len(self._left))):
            partition = self._left.popleft()
            log = self._directory.get(partition)
            if log is not None:
                logs[partition] = log
        return RetentionSlice(
            self._directory,
            logs,
            droppable_offset_of=self._droppable_offset_of,
            now_ms=now_ms,
            is_last=not self._left,
        )
