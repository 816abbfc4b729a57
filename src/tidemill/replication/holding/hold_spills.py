"""Keeps the books of holds small: full tables of theirs become mapped files, written in a thread.

After some of these runs a snapshot says which of them belong together, so that a restart or a cut
replays only what came later. Runs that neither the book nor a snapshot needs are removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import final

from tidemill.core.errors import StorageFault
from tidemill.core.limits import HOLD_RUNS_PER_SNAPSHOT, HOLD_TABLE_MAX
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.holds.hold_shelves import Spill
from tidemill.replication.holding.hold_snapshots import HoldSnapshots
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.interface import PartitionLog
from tidemill.storage.state.hold_files import HoldFiles

__all__ = ["HoldSpills"]

_GENERATION_BITS = 32


@final
class HoldSpills:
    """The run files of one partition. One book at a time writes there."""

    def __init__(
        self,
        log: PartitionLog,
        *,
        table_max: int = HOLD_TABLE_MAX,
        runs_max: int = HOLD_RUNS_PER_SNAPSHOT,
    ) -> None:
        """Without a directory (a log in memory) books stay in memory."""
        self._directory = log.directory
        self._table_max = table_max
        self._snapshots = HoldSnapshots(log, table_max=table_max, runs_max=runs_max)
        self._files: HoldFiles | None = None
        self._turn = asyncio.Lock()
        """The files change in one place at a time: a table is written while a replay runs."""
        self._generation = 0
        self._newest: HoldBook | None = None
        """The book that is made from the log as it is now: a cut begins another one."""
        self._distrusts_snapshots = False

    def new_book(self) -> HoldBook:
        """An empty book, whose runs have numbers that no other book of this process uses."""
        self._generation += 1
        self._newest = HoldBook(
            serial=self._generation << _GENERATION_BITS, table_max=self._table_max
        )
        return self._newest

    async def open_book(self, disk: Disk) -> HoldBook:
        """The book of the newest snapshot, or an empty one. Raises StorageFault, KafkaError."""
        made = self.new_book()
        if not self._directory:
            return made
        async with self._turn:
            files = await disk.run(partial(self._opened, disk))
            if self._distrusts_snapshots:
                await disk.run(files.drop_snapshots)
                self._distrusts_snapshots = False
            restored = await self._snapshots.try_restore(disk, files)
        if restored is None:
            return made
        if self._newest is made:
            self._newest = restored
        return restored

    def distrust_snapshots(self) -> None:
        """The next book is made from the log alone."""
        self._distrusts_snapshots = True

    def try_take(self, book: HoldBook) -> Spill | None:
        """What `write` should write of this book, if it has grown too large for memory."""
        if not self._directory or book.pending < self._table_max:
            return None
        return book.try_freeze()

    async def write(self, disk: Disk, book: HoldBook, spill: Spill) -> None:
        """Write a table and let the book use the file. Raises StorageFault, KafkaError (busy).

        Then the table stays in memory until the next attempt, as that of a book which the log has
        left behind: the files are those of its successor.
        """
        async with self._turn:
            if book is self._newest:
                await self._write_and_keep(disk, book, spill)
            else:
                book.give_back(spill)

    async def _write_and_keep(self, disk: Disk, book: HoldBook, spill: Spill) -> None:
        try:
            data = await disk.run(partial(self._write, disk, spill), DiskWork.BACKGROUND)
        except StorageFault:
            book.give_back(spill)
            raise
        book.adopt(spill.serial, data)
        files = self._opened(disk)
        await self._drop_unused(disk, files, book)
        if book is self._newest:
            await self._snapshots.wrote_run(disk, files, book)

    async def open_files(self, disk: Disk) -> bool:
        """Find out what files there are; False: nothing is kept in files."""
        async with self._turn:
            if self._directory and self._files is None:
                await disk.run(partial(self._opened, disk), DiskWork.BACKGROUND)
        return self._files is not None

    async def look(self, disk: Disk, book: HoldBook, is_whole: Callable[[], bool]) -> None:
        """Keep a snapshot of this book, if it is whole and it is time. Raises StorageFault."""
        async with self._turn:
            files = self._files
            if files is None or book is not self._newest or not is_whole():
                return
            if await self._snapshots.look(disk, files, book):
                await self._drop_unused(disk, files, book)

    async def _drop_unused(self, disk: Disk, files: HoldFiles, book: HoldBook) -> None:
        drop = partial(files.drop_unused, [*book.runs(), *self._snapshots.needed_runs()])
        await disk.run(drop, DiskWork.BACKGROUND)

    def _write(self, disk: Disk, spill: Spill) -> memoryview:
        return self._opened(disk).write_run(spill.serial, spill.encode())

    def _opened(self, disk: Disk) -> HoldFiles:
        if self._files is None:
            files = HoldFiles(disk, self._directory, disk.list_names(self._directory))
            files.drop_unused(())
            self._files = files
        return self._files
