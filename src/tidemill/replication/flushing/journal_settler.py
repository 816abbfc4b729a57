"""Settles the round journal: syncs the segments whose bytes it has, then ends the lap.

The rounds that settle are ordinary flush rounds of a few logs each, between those that
acknowledgements wait for. So no segment is synced twice at a time, and a failed sync has one owner.
A file that was full grows before it is filled again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.errors import StorageFault
from tidemill.core.telemetry import Telemetry
from tidemill.replication.flushing.flusher import Flusher
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork

__all__ = ["JournalSettler"]

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often the loop looks whether the bytes in a file have waited long enough."""
RETRY_S = 60.0
"""When a journal that could not be made is tried again."""


@final
class JournalSettler:
    """The loop over the journal of one data directory."""

    def __init__(
        self,
        disk: Disk,
        directory: LogDirectory,
        flusher: Flusher,
        *,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._journal = directory.journal
        self._flusher = flusher
        self._clock = clock
        self._telemetry = telemetry
        self._one_at_a_time = asyncio.Lock()
        self._due = asyncio.Event()
        self._journal.on_due = self._due.set

    async def run(self) -> None:
        """Make the journal when a round wants it, and settle it when it is due, forever."""
        while self._directory.failure is None:
            await self._wait_due()
            if self._journal.is_wanted:
                await self._make()
            elif self._journal.wants_settling(self._now_ms()):
                await self._settle()

    async def settle(self, is_in_journal: Callable[[], bool]) -> None:
        """Settle until nothing of a log is in the journal. Raises StorageFault if that failed."""
        while is_in_journal():
            if not await self._settle() and is_in_journal():
                raise self._directory.failure or StorageFault("the journal is not settled any more")

    async def _wait_due(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._due.wait()
        except TimeoutError:
            return
        self._due.clear()

    async def _make(self) -> None:
        try:
            self._journal.use(await self._disk.run(self._journal.make, DiskWork.BACKGROUND))
        except StorageFault as fault:  # nothing was promised yet: rounds go on without it
            log.warning("there is no flush journal, segments are synced instead: %s", fault)
            await asyncio.sleep(RETRY_S)

    async def _settle(self) -> bool:
        """Settle the file that fills. False: none does, the disk failed, or the broker ends."""
        async with self._one_at_a_time:
            async with self._flusher.between_rounds():
                if not self._journal.try_begin_settling():
                    return False
            while await self._flusher.run_round(self._directory.collect_settling):
                pass
            if not self._journal.is_settled or self._directory.failure is not None:
                return False
            try:
                await self._end_lap()
            except StorageFault as fault:
                self._directory.fail(fault)
                return False
            return True

    async def _end_lap(self) -> None:
        block = self._journal.free()
        await self._disk.write_gathered(
            block.file, block.position, block.head, block.ranges, DiskWork.BACKGROUND
        )
        try:
            await self._disk.run(self._journal.grow, DiskWork.BACKGROUND)
        except StorageFault as fault:  # it holds nothing now, and keeps its size
            log.warning("the flush journal does not grow: %s", fault)
        self._journal.freed()
        self._telemetry.journal_laps += 1

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
