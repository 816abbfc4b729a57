"""Keeps the books of holds small: full tables of theirs become mapped files, written in a thread.

The files serve the process that wrote them. A restart replays the log and writes its own; what an
earlier process left is removed first.
"""

from __future__ import annotations

from functools import partial
from typing import final

from tidemill.core.limits import HOLD_TABLE_MAX
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.holds.hold_shelves import Spill
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.state.hold_files import HoldFiles

__all__ = ["HoldSpills"]

_GENERATION_BITS = 32


@final
class HoldSpills:
    """The run files of one partition. One book at a time writes there."""

    def __init__(self, directory: str) -> None:
        """Without a directory (a log in memory) books stay in memory."""
        self._directory = directory
        self._files: HoldFiles | None = None
        self._generation = 0

    def new_book(self) -> HoldBook:
        """An empty book, whose runs have numbers that no other book uses."""
        self._generation += 1
        return HoldBook(serial=self._generation << _GENERATION_BITS)

    def try_take(self, book: HoldBook) -> Spill | None:
        """What `write` should write of this book, if it has grown too large for memory."""
        if not self._directory or book.pending < HOLD_TABLE_MAX:
            return None
        return book.try_freeze()

    async def write(self, disk: Disk, book: HoldBook, spill: Spill) -> None:
        """Write a table and let the book use the file. Raises StorageFault, KafkaError (busy).

        Then the table stays in memory.
        """
        data = await disk.run(partial(self._write, disk, spill), DiskWork.BACKGROUND)
        book.adopt(spill.serial, data)
        drop = partial(self._opened(disk).drop_unused, book.runs())
        await disk.run(drop, DiskWork.BACKGROUND)

    def _write(self, disk: Disk, spill: Spill) -> memoryview:
        return self._opened(disk).write_run(spill.serial, spill.encode())

    def _opened(self, disk: Disk) -> HoldFiles:
        if self._files is None:
            files = HoldFiles(disk, self._directory, disk.list_names(self._directory))
            files.drop_unused(())
            self._files = files
        return self._files
