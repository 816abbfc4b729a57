"""Snapshots of large books: a start or a cut replays what lies behind the newest one, not all.

A snapshot is captured after some runs were written, or when the log has grown much: a small book
of a long log would take long to find again, and nothing is released meanwhile. It is stored once
all that it describes is durable. It names the batch before its offset, as the log had it in the
turn of the capture: a log that was cut and written again has another batch there, and the snapshot
is not used.

Whatever is wrong with a snapshot, the answer is a longer replay.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import NamedTuple, final

from tidemill.core.limits import HOLD_SNAPSHOT_LOG_BYTES
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.holds.hold_capture import HoldCapture
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.interface import LogSlice, PartitionLog
from tidemill.storage.state.hold_files import HoldFiles, StoredHolds
from tidemill.wire.batch import read_header

__all__ = ["HoldSnapshots"]

_MARK = Struct(">qIi")
"""Of a batch: its end, its checksum and its leader epoch."""


class _Waiting(NamedTuple):
    """A capture that is stored when the log is durable up to its offset."""

    book: HoldBook
    captured: HoldCapture
    mark: bytes


@final
class HoldSnapshots:
    """The snapshots of one partition."""

    def __init__(self, log: PartitionLog, *, table_max: int, runs_max: int) -> None:
        self._log = log
        self._table_max = table_max
        self._runs_max = runs_max
        self._waiting: _Waiting | None = None
        self._runs = 0
        """Written since the last capture."""
        self._log_bytes = 0
        """What the log had at the last capture."""

    async def wrote_run(self, disk: Disk, files: HoldFiles, book: HoldBook) -> None:
        """A run of this book was written, which is that of the log. Raises StorageFault."""
        self._runs += 1
        await self._keep(disk, files, book, is_wanted=self._runs >= self._runs_max)

    async def look(self, disk: Disk, files: HoldFiles, book: HoldBook) -> bool:
        """To be called now and then, with the whole book of the log; whether a snapshot was stored.

        Retention makes a log smaller: that is another size too. Raises StorageFault.
        """
        is_wanted = abs(self._log.size_bytes - self._log_bytes) >= HOLD_SNAPSHOT_LOG_BYTES
        if is_wanted and self._waiting is None:
            book.fold((), offset=self._log.log_end_offset)
        return await self._keep(disk, files, book, is_wanted=is_wanted)

    async def _keep(self, disk: Disk, files: HoldFiles, book: HoldBook, *, is_wanted: bool) -> bool:
        """Capture the book, or store what was captured, if it is durable by now."""
        waiting = self._waiting
        if waiting is not None and waiting.book is not book:
            waiting = self._waiting = None
        if waiting is None and is_wanted:
            self._capture(book)
        elif waiting is not None and waiting.captured.next_offset <= self._log.flushed_offset:
            self._waiting = None
            await disk.run(partial(_store, files, waiting), DiskWork.BACKGROUND)
            return True
        return False

    def _capture(self, book: HoldBook) -> None:
        found = self._batch_before(book.next_offset)
        if found is None or found.load is not None:
            return  # the end of the log is in memory, almost always
        mark = _mark_of(found.chunks[0])
        self._waiting, self._runs = _Waiting(book, book.capture(), mark), 0
        self._log_bytes = self._log.size_bytes

    def needed_runs(self) -> list[int]:
        """The runs of a snapshot that is not stored yet."""
        return [] if self._waiting is None else [run.serial for run in self._waiting.captured.runs]

    async def try_restore(self, disk: Disk, files: HoldFiles) -> HoldBook | None:
        """The book of the newest snapshot that is of this log. Raises StorageFault."""
        snapshots = files.iter_newest(self._log.log_end_offset)
        while (stored := await disk.run(partial(next, snapshots, None))) is not None:
            if bytes(stored.state[: _MARK.size]) == await self._read_mark(disk, stored.offset):
                made = HoldBook(serial=files.next_run, table_max=self._table_max)
                book = await disk.run(partial(_try_open, stored, made))
                if book is not None:
                    return book
            await disk.run(partial(files.drop_snapshot, stored.offset))
        return None

    async def _read_mark(self, disk: Disk, offset: int) -> bytes | None:
        found = self._batch_before(offset)
        if found is None:
            return None
        chunks = found.chunks if found.load is None else await disk.run(found.load)
        return _mark_of(chunks[0]) if chunks else None  # the log may be cut while it is read

    def _batch_before(self, offset: int) -> LogSlice | None:
        log = self._log
        if not log.log_start_offset < offset <= log.log_end_offset:
            return None
        return log.read(offset - 1, max_bytes=1, end_offset=log.log_end_offset)


def _mark_of(batch: bytes | bytearray | memoryview) -> bytes:
    header = read_header(batch)
    return _MARK.pack(header.next_offset, header.crc, header.partition_leader_epoch)


def _store(files: HoldFiles, waiting: _Waiting) -> None:
    captured = waiting.captured
    serials = [run.serial for run in captured.runs]
    files.write_snapshot(captured.next_offset, waiting.mark + captured.encode(), serials)


def _try_open(stored: StoredHolds, book: HoldBook) -> HoldBook | None:
    """The captured book, made of an empty one; None if the files do not fit together."""
    try:
        book.restore(HoldCapture.decode(stored.state[_MARK.size :]), stored.runs)
    except ValueError:
        return None
    return book
