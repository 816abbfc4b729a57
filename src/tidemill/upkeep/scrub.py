"""The slow check of all data at rest: reads closed segments and verifies their checksums.

A disk loses bits unnoticed where data is not read. The scrub reads everything once per period, in
small slices and within a byte rate, so that damage is found while another replica still has a good
copy. It only reports: a slice changes no file, and `mender` replaces what is damaged.

    next_slice(now_ms) -> a slice, or None when nothing is due    on the loop
    slice.run()                                                   in a thread
    finish(slice, now_ms)                                         on the loop

The last segment of a log is left out: it still grows, and recovery checks it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB, SCRUB_EVENTS_MAX
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.log_file_names import LOG_SUFFIX, offset_path
from tidemill.storage.recovery.checked_scan import CheckedScan, ends_by, try_find_batch_after
from tidemill.storage.recovery.segment_files import offsets_in
from tidemill.storage.state.log_damage import DamagedRange

__all__ = ["WEEK_MS", "DamageFound", "Scrub", "ScrubSlice"]

WEEK_MS = 7 * 24 * 3600 * 1000
SLICE_BYTES = 4 * MIB
BYTES_PER_SECOND = 20 * MIB


@final
@dataclass(frozen=True, slots=True)
class DamageFound:
    """Bytes that are no longer what was appended."""

    partition: TopicPartition
    path: str
    position: int
    offsets: DamagedRange
    """What cannot be read."""
    detail: str


@final
class ScrubSlice:
    """A few megabytes of one segment."""

    def __init__(
        self,
        disk: Disk,
        partition: TopicPartition,
        path: str,
        *,
        base_offset: int,
        next_offset: int,
    ) -> None:
        """The segment has the offsets from `base_offset` up to `next_offset`."""
        self._disk = disk
        self._partition = partition
        self._path = path
        self._base_offset = base_offset
        self._next_offset = next_offset
        self._scan: CheckedScan | None = None
        self._file: DiskFile | None = None
        self._size_bytes = 0
        self.is_last = False
        """The segment is done."""
        self.checked_bytes = 0
        """By the latest `run`."""
        self.damage: list[DamageFound] = []
        """Found by the latest `run`."""

    def run(self) -> None:
        """Check the next bytes. A segment that no longer exists (retention, truncation) is done."""
        self.damage, self.checked_bytes = [], 0
        try:
            self._check_some()
        except StorageFault as error:
            self.is_last = True
            if self._disk.exists(self._path):
                self._report(str(error), self._next_offset)
        if self.is_last and self._file is not None:
            self._file.close()

    def _check_some(self) -> None:
        file = self._file or self._disk.open(self._path)
        self._file = file  # kept open: compaction may put another file under the path
        scan = self._scan
        if scan is None:
            self._size_bytes = file.size()
            scan = self._scan = CheckedScan(
                file,
                position=0,
                end=self._size_bytes,
                next_offset=self._base_offset,
                check=ends_by(self._next_offset),
            )
        start = scan.position
        for _ in scan:
            if scan.position - start >= SLICE_BYTES:
                break
        if scan.damage is not None:
            self._skip_damage(scan, file, scan.damage)
        elif scan.position >= self._size_bytes and scan.next_offset < self._next_offset:
            self._report("the segment ends too early", self._next_offset)
        self.checked_bytes = scan.position - start
        self.is_last = self.is_last or scan.position >= self._size_bytes

    def _skip_damage(self, scan: CheckedScan, file: DiskFile, detail: str) -> None:
        found = try_find_batch_after(
            file, position=scan.position, end=self._size_bytes, next_offset=scan.next_offset
        )
        self._report(detail, self._next_offset if found is None else found.header.base_offset)
        if found is None:
            self.is_last = True
        else:
            scan.skip_to(found)

    def _report(self, detail: str, end_offset: int) -> None:
        scan = self._scan
        position = 0 if scan is None else scan.position
        offsets = DamagedRange(self._base_offset if scan is None else scan.next_offset, end_offset)
        self.damage.append(DamageFound(self._partition, self._path, position, offsets, detail))


@final
class Scrub:
    """Decides what is checked next. `now_ms` is monotonic time."""

    def __init__(
        self,
        disk: Disk,
        partitions: Callable[[], Sequence[tuple[TopicPartition, str]]],
        *,
        period_ms: int = WEEK_MS,
        bytes_per_second: int = BYTES_PER_SECOND,
    ) -> None:
        self._disk = disk
        self._partitions = partitions
        """Every partition and the path of its directory."""
        self._period_ms = period_ms
        self._bytes_per_second = bytes_per_second
        self._partitions_left: deque[tuple[TopicPartition, str]] = deque()
        self._segments_left: deque[ScrubSlice] = deque()
        self._cycle_due_ms: int | None = None
        self._slice_due_ms = 0
        self._in_flight = False
        self.segments_checked = 0
        self.bytes_checked = 0
        self.damages_found = 0
        self.events: deque[DamageFound] = deque(maxlen=SCRUB_EVENTS_MAX)
        """The latest damage; the counters include all of it."""

    def next_slice(self, now_ms: int) -> ScrubSlice | None:
        """What to check now; None while a slice runs, the rate is used up, or nothing is due."""
        if self._in_flight or now_ms < self._slice_due_ms:
            return None
        self._maybe_begin_cycle(now_ms)
        while not self._segments_left and self._partitions_left:
            self._segments_left.extend(self._closed_segments(*self._partitions_left.popleft()))
        if not self._segments_left:
            return None
        self._in_flight = True
        return self._segments_left[0]

    def finish(self, part: ScrubSlice, now_ms: int) -> list[DamageFound]:
        """The slice ran: count it, and return the damage it found."""
        self._in_flight = False
        self._slice_due_ms = now_ms + part.checked_bytes * 1000 // self._bytes_per_second
        self.bytes_checked += part.checked_bytes
        self.damages_found += len(part.damage)
        self.events.extend(part.damage)
        if part.is_last:
            self._segments_left.popleft()
            self.segments_checked += 1
        return part.damage

    def _maybe_begin_cycle(self, now_ms: int) -> None:
        if self._segments_left or self._partitions_left:
            return
        if self._cycle_due_ms is None:
            self._cycle_due_ms = now_ms + self._period_ms
            return  # a broker that just started has more urgent work
        if now_ms >= self._cycle_due_ms:
            self._cycle_due_ms = now_ms + self._period_ms
            self._partitions_left.extend(self._partitions())

    def _closed_segments(self, partition: TopicPartition, directory: str) -> list[ScrubSlice]:
        try:
            names = self._disk.list_names(directory)
        except StorageFault:
            return []  # deleted since the cycle began
        bases = offsets_in(names, LOG_SUFFIX)
        return [
            ScrubSlice(
                self._disk,
                partition,
                offset_path(directory, base, LOG_SUFFIX),
                base_offset=base,
                next_offset=next_base,
            )
            for base, next_base in pairwise(bases)
        ]
