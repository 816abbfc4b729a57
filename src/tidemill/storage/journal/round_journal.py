"""The round journal of a data directory: what makes small flushes of many logs cheap (ADR 0008).

Theory of operation. Syncing a file costs the same for ten bytes as for ten thousand. A round that
covers many logs with few bytes each writes these bytes once more, one behind the other, into one
file that was filled with zeros before, and syncs only that. The segments are synced later, many
rounds at a time. A start after a crash writes the journal's bytes over the segments before it looks
at them (`journal_replay`): the log stays the one truth, the journal only keeps a promise until the
log can.

There are two files. One fills; when it is nearly full, or its oldest bytes wait too long, the other
one takes over, and the first is *settled*: every log that it has bytes of is flushed by ordinary
rounds, then the file's first block is overwritten, which ends its lap. Only then it is filled
again.

    free ──try_place──> filling ──try_begin_settling──> settling ──free, freed──> free

    invariant                                                 what would break it
    bytes in a live lap stand in the segment named by them,   a cut or a swap of a live segment:
    at that position                                          settle first (`LiveLaps`)
    a lap ends only when its bytes are in synced segments     freeing before the last round ended
    blocks of one lap are numbered; a block of another lap    reading on into an old lap
    ends it

What does not go into the journal: logs with new names or small files to store, and long tails. A
round without a file to fill syncs segments, as every round can at any time: the journal may be
missing, full or switched off, and is never needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, final
from uuid import UUID

from tidemill.core.errors import DiskFull, StorageFault, invariant
from tidemill.core.limits import (
    GATHERED_BYTES_MAX,
    GATHERED_RANGES_MAX,
    JOURNAL_BYTES_MAX,
    JOURNAL_FILE_BYTES_MIN,
    JOURNAL_LOGS_MIN,
    JOURNAL_SETTLE_AFTER_MS,
    JOURNAL_TAIL_BYTES_MAX,
)
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.gathered_write import CHECKSUM_BYTES, write_gathered_now
from tidemill.storage.files.live_laps import LiveLaps
from tidemill.storage.journal.journal_block import (
    DEAD_HEAD,
    BlockPlace,
    encode_entry,
    encode_head,
    next_sector,
)
from tidemill.storage.log.flush_point import FlushPoint, UnsyncedTail
from tidemill.storage.log.interface import PartitionLog

__all__ = ["JOURNAL_NAMES", "JournalBlock", "JournalLimits", "RoundJournal"]

JOURNAL_NAMES: Final = ("round-journal.0", "round-journal.1")

_ZEROS: Final = bytes(1 << 20)
_CONTENT_BYTES_MAX: Final = GATHERED_BYTES_MAX - JOURNAL_TAIL_BYTES_MAX
_TAILS_MAX: Final = 8
"""Dirty segments of a log in a block."""
_ENTRIES_MAX: Final = GATHERED_RANGES_MAX - _TAILS_MAX
_ROOM_FACTOR: Final = 8
"""The journal takes room only where this many times as much is free."""

Covered = tuple[PartitionLog, FlushPoint]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLimits:
    """How large the journal may get, and what goes into it."""

    bytes_max: int = JOURNAL_BYTES_MAX
    """Both files together; 0: no journal."""
    file_bytes_min: int = JOURNAL_FILE_BYTES_MIN
    """The first size of each file."""
    logs_min: int = JOURNAL_LOGS_MIN
    """Rounds of fewer logs sync their files."""
    settle_after_ms: int = JOURNAL_SETTLE_AFTER_MS

    @classmethod
    def of_bytes(cls, bytes_max: int) -> JournalLimits:
        """As configured; a file has a useful size, or there is none."""
        return cls(bytes_max=max(bytes_max, 2 * JOURNAL_FILE_BYTES_MIN) if bytes_max else 0)


@final
@dataclass(frozen=True, slots=True)
class JournalBlock:
    """One block, ready to be written and synced: for `Disk.write_gathered`."""

    file: DiskFile
    position: int
    head: bytes
    ranges: Sequence[tuple[DiskFile, int, int]]
    size_bytes: int

    def write_now(self) -> None:
        """Write and sync it; blocks. Raises StorageFault."""
        write_gathered_now(self.file, self.position, self.head, self.ranges)


class _Phase(Enum):
    FREE = auto()
    FILLING = auto()
    SETTLING = auto()


@final
class _JournalFile:
    """One of the two files."""

    def __init__(self, file: DiskFile, size_bytes: int) -> None:
        self.file = file
        self.size_bytes = size_bytes
        self.phase = _Phase.FREE
        self.lap = 0
        self.end = 0
        """Where the next block begins."""
        self.blocks = 0
        self.since_ms = 0
        """When its first block was placed."""
        self.logs: dict[bytes, PartitionLog] = {}
        """The logs that it has bytes of, by their names."""

    def start_lap(self, lap: int, now_ms: int) -> None:
        self.phase = _Phase.FILLING
        self.lap = lap
        self.end = self.blocks = 0
        self.since_ms = now_ms

    def end_lap(self) -> None:
        self.phase = _Phase.FREE
        self.logs = {}


@final
class RoundJournal:
    """Places blocks and settles files. Everything runs on the loop but what says otherwise."""

    def __init__(
        self, disk: Disk, directory: str, directory_id: UUID, limits: JournalLimits
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._directory_id = directory_id
        self.limits = limits
        self._content_bytes_max = min(_CONTENT_BYTES_MAX, limits.bytes_max // 4)
        """No further log once a block has more: it must fit into a file, and into one write."""
        self.live_laps = LiveLaps()
        self._laps = 0
        """Laps begun so far."""
        self._files: list[_JournalFile] = []
        """Empty until the first round that wants them, then two."""
        self._made: list[DiskFile] = []
        """Files that `make` has made so far."""
        self._filling: _JournalFile | None = None
        self._settling: _JournalFile | None = None
        self._unsettled: deque[PartitionLog] = deque()
        """Logs of the file that is being settled; a flush of each comes first."""
        self._is_missed = False
        """A round had use for the journal, and there is none yet."""
        self.on_due: Callable[[], None] = _nothing
        """Called when the journal has to be made, or a file is full."""
        self._overflowed = False
        """A block found no room in the file that fills."""
        self._grown_size = 0
        """The size that the file which is being settled gets."""

    # --- placing blocks ---------------------------------------------------------------------------

    def try_place(self, covered: Iterable[Covered], now_ms: int) -> JournalBlock | None:
        """A block with the tails of those points that it suits, which learn their lap; or None.

        The block must be written before any later one, and a failure is one of the directory.
        """
        if not self.limits.bytes_max:
            return None
        suited = [one for one in covered if _is_suited(one[1])]
        if len(suited) < self.limits.logs_min:
            return None
        target = self._filling or self._try_start_lap(now_ms)
        if target is None:
            return None
        return self._try_fill(target, suited)

    def _try_start_lap(self, now_ms: int) -> _JournalFile | None:
        if not self._files and not self._is_missed:
            self._is_missed = True
            self.on_due()
        free = [one for one in self._files if one.phase is _Phase.FREE]
        if not free:
            return None
        self._filling = filling = min(free, key=lambda one: one.lap)
        self._laps += 1
        filling.start_lap(self._laps, now_ms)
        self._update_live_laps()
        return filling

    def _try_fill(self, target: _JournalFile, suited: Sequence[Covered]) -> JournalBlock | None:
        """The logs that do not fit into one block are left to be synced."""
        entries: list[bytes] = []
        ranges: list[tuple[DiskFile, int, int]] = []
        content_bytes = count = 0
        for _, point in suited:
            for tail in point.tails:
                size = tail.end - tail.start
                if size:
                    entries.append(_entry(point.journal_name, tail))
                    ranges.append((tail.file, tail.start, size))
                    content_bytes += size
            count += 1
            if content_bytes > self._content_bytes_max or len(ranges) > _ENTRIES_MAX:
                break
        place = BlockPlace(self._directory_id, target.lap, target.blocks)
        head = encode_head(place, entries, content_bytes)
        size_bytes = CHECKSUM_BYTES + len(head) + content_bytes
        if target.end + size_bytes > target.size_bytes:
            self._overflowed = True
            self.on_due()
            return None
        block = JournalBlock(target.file, target.end, head, ranges, size_bytes)
        target.end = next_sector(target.end + size_bytes)
        target.blocks += 1
        for log, point in suited[:count]:
            point.journal_lap = target.lap
            target.logs[point.journal_name] = log
        if self._is_full(target):
            self.on_due()
        return block

    def has(self, log_name: bytes) -> bool:
        """Whether a crash would replay bytes of the log with this name."""
        return any(log_name in one.logs for one in self._files)

    # --- settling ---------------------------------------------------------------------------------

    def wants_settling(self, now_ms: int) -> bool:
        """Whether the file that fills is nearly full, or its bytes wait too long."""
        filling = self._filling
        if filling is None or self._settling is not None:
            return False
        return self._is_full(filling) or now_ms - filling.since_ms >= self.limits.settle_after_ms

    def _is_full(self, filling: _JournalFile) -> bool:
        return self._overflowed or filling.end > filling.size_bytes * 3 // 4

    def try_begin_settling(self) -> bool:
        """Between two rounds: stop filling, to flush what the file has. False: none is filling."""
        filling = self._filling
        if filling is None:
            return False
        invariant(self._settling is None, "one journal file is settled at a time")
        grown = 2 * filling.size_bytes if self._is_full(filling) else filling.size_bytes
        self._grown_size = min(grown, self.limits.bytes_max // 2)
        self._overflowed = False
        filling.phase = _Phase.SETTLING
        self._settling = filling
        self._unsettled = deque(filling.logs.values())
        self._filling = None
        return True

    def take_unsettled(self, logs_max: int) -> list[Covered]:
        """Flush points of the next logs, for an ordinary round; empty when all are settled."""
        points: list[Covered] = []
        while self._unsettled and len(points) < logs_max:
            log = self._unsettled.popleft()
            point = log.take_sync_point()
            if point is not None:
                points.append((log, point))
        return points

    @property
    def is_settled(self) -> bool:
        """Whether every log of the file that is being settled was flushed."""
        return not self._unsettled

    def free(self) -> JournalBlock:
        """The block that ends the lap of the settled file; `freed` when it is written."""
        settling = self._settling
        invariant(
            settling is not None and self.is_settled,
            "a journal file is freed before its segments are synced",
        )
        assert settling is not None
        return JournalBlock(settling.file, 0, DEAD_HEAD, (), CHECKSUM_BYTES + len(DEAD_HEAD))

    def freed(self) -> None:
        """The end of the lap is durable. Its file may have grown meanwhile."""
        assert self._settling is not None
        self._settling.end_lap()
        self._settling = None
        self._update_live_laps()

    def _update_live_laps(self) -> None:
        laps = [one.lap for one in self._files if one.phase is not _Phase.FREE]
        self.live_laps.oldest = min(laps, default=self._laps + 1)

    # --- making and growing its files -------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """Whether `make` has to be called."""
        return self._is_missed and not self._files

    def make(self) -> list[DiskFile]:
        """Both files, filled with zeros and durable: for `Disk.run`, then `use` them.

        Raises StorageFault, and DiskFull also where little room would be left for the logs; then it
        may be called again. The thread can outlive the directory's lock, so it only touches files
        that it has made: a name may already be that of the next broker's journal.
        """
        try:
            self._check_room(2 * self._first_size)
            for name in JOURNAL_NAMES[len(self._made) :]:
                self._made.append(self._disk.open(f"{self._directory}/{name}", create=True))
            for file in self._made:
                _fill_with_zeros(file, 0, self._first_size)
            self._disk.sync_directory(self._directory)
        except StorageFault:
            with suppress(StorageFault):
                for file in self._made:
                    file.truncate(0)
            raise
        return self._made

    def _check_room(self, size_bytes: int) -> None:
        usable_bytes = self._disk.space(self._directory).usable_bytes
        if usable_bytes < _ROOM_FACTOR * size_bytes:
            raise DiskFull(f"{self._directory}: {usable_bytes} bytes are left for logs")

    def use(self, files: Sequence[DiskFile]) -> None:
        self._files = [_JournalFile(file, self._first_size) for file in files]

    @property
    def _first_size(self) -> int:
        return min(self.limits.file_bytes_min, self.limits.bytes_max // 2)

    def grow(self) -> None:
        """Make the file that is being settled larger if it was full: for `Disk.run`.

        Raises as `make`; then it stays as it was.
        """
        settling = self._settling
        assert settling is not None
        size_bytes, grown_bytes = settling.size_bytes, self._grown_size
        if grown_bytes <= size_bytes:
            return
        self._check_room(grown_bytes - size_bytes)
        try:
            _fill_with_zeros(settling.file, size_bytes, grown_bytes)
        except StorageFault:
            with suppress(StorageFault):
                settling.file.truncate(size_bytes)
            raise
        settling.size_bytes = grown_bytes


def _nothing() -> None:
    return


def _is_suited(point: FlushPoint) -> bool:
    """Few bytes, and nothing but bytes."""
    if not point.journal_name or len(point.tails) > _TAILS_MAX:
        return False
    return sum([tail.end - tail.start for tail in point.tails]) <= JOURNAL_TAIL_BYTES_MAX


def _entry(log_name: bytes, tail: UnsyncedTail) -> bytes:
    return encode_entry(log_name, tail.base_offset, tail.start, tail.end - tail.start)


def _fill_with_zeros(file: DiskFile, start: int, end: int) -> None:
    """Written, not only allocated: a sync of an overwritten block changes no metadata."""
    for position in range(start, end, len(_ZEROS)):
        file.pwrite([memoryview(_ZEROS)[: end - position]], position)
    file.sync()
