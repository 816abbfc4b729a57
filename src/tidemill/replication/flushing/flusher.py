"""Drives the flush rounds of one data directory: one at a time, never on the event loop (ADR 0008).

While a round syncs in its threads, appends continue and gather for the next round: the more
producers wait, the more of them one fdatasync serves. A failed round takes the directory offline
and is never retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, final

from tidemill.core.clock import Clock
from tidemill.core.errors import StorageFault
from tidemill.core.limits import DISK_FLUSH_THREADS
from tidemill.core.telemetry import Telemetry
from tidemill.storage.directory.flush_round import DirtyLogs, FlushRound
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.journal.round_journal import JournalBlock
from tidemill.storage.log.interface import FOREVER, PartitionLog

__all__ = ["Flusher"]

log = logging.getLogger(__name__)

IDLE_S: Final = 3600.0


@final
class Flusher:
    """The loop that runs flush rounds over the dirty logs of its directory."""

    def __init__(
        self,
        disk: Disk,
        dirty: DirtyLogs,
        *,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._disk = disk
        self._dirty = dirty
        self._clock = clock
        self._telemetry = telemetry
        self._listeners: list[Callable[[PartitionLog], None]] = []
        self._wanted = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._failed = False
        self._finished = False

    def subscribe(self, flushed: Callable[[PartitionLog], None]) -> None:
        """Call `flushed` with every log that a round has made durable."""
        self._listeners.append(flushed)

    def appended(self, log_: PartitionLog, size_bytes: int, *, ack_waits: bool) -> None:
        """The log grew. It is flushed in the next round if `ack_waits`, else by its own rules."""
        dirty = self._dirty
        if not dirty.grew(log_, size_bytes):
            dirty.appended(log_, size_bytes, now_ms=self._now_ms())
            if dirty.wants_round or log_.config.flush_ms != FOREVER:
                self._wanted.set()
        if ack_waits:
            dirty.request(log_)
            self._wanted.set()

    def request(self, log_: PartitionLog) -> None:
        """Flush everything that this log holds now in the next round."""
        self._dirty.request(log_)
        self._wanted.set()

    async def run(self) -> None:
        """Run rounds forever; return when the directory has failed."""
        while not self._failed:
            self._wanted.clear()
            if not await self.run_round(lambda: self._dirty.collect(now_ms=self._now_ms())):
                await self._wait_wanted()

    async def run_round(self, collect: Callable[[], FlushRound | None]) -> bool:
        """Run the round that `collect` returns, if any, with no other round beside it.

        Returns whether there was one. Checkpoints use it too.
        """
        async with self._one_at_a_time:
            round_ = None if self._failed or self._finished else collect()
            self._tell_flushed(self._dirty.take_already_flushed())
            if round_ is not None:
                await self._sync(round_)
        return round_ is not None

    def between_rounds(self) -> AbstractAsyncContextManager[None]:
        """While it is held no round runs: a log is cut without a sync seeing it."""
        return self._one_at_a_time

    async def finish(self) -> None:
        """Start no more rounds, and wait for the running one: a sync cannot be cancelled."""
        self._finished = True
        async with self._one_at_a_time:
            return

    async def _wait_wanted(self) -> None:
        due_ms = self._dirty.next_due_ms()
        wait_s = IDLE_S if due_ms is None else max(0.0, (due_ms - self._now_ms()) / 1000)
        try:
            async with asyncio.timeout(wait_s):
                await self._wanted.wait()
        except TimeoutError:
            return

    async def _sync(self, round_: FlushRound) -> None:
        started = self._clock.monotonic()
        logs = round_.logs
        try:
            await self._make_durable(round_)
            round_.synced()
        except StorageFault as fault:
            self._failed = True
            self._telemetry.flush_failures += 1
            log.critical("flush failed, the data directory goes offline: %s", fault)
            round_.fail(fault)
            return
        round_.apply()
        self._count(round_, self._clock.monotonic() - started)
        self._tell_flushed(logs)

    def _count(self, round_: FlushRound, seconds: float) -> None:
        telemetry = self._telemetry
        telemetry.flush_rounds += 1
        telemetry.flush_latency.observe(seconds)
        if round_.block is not None:
            telemetry.journal_rounds += 1
            telemetry.journal_bytes += round_.block.size_bytes

    async def _make_durable(self, round_: FlushRound) -> None:
        """Raises StorageFault."""
        disk, block, files = self._disk, round_.block, round_.files
        outcomes: list[StorageFault | None] = []
        if block is None:
            outcomes = await disk.sync_files(files)
        elif not files:
            await self._write(block)
        else:
            for found in await asyncio.gather(*[disk.sync_files(files), self._write(block)]):
                outcomes += found
        round_.check_synced(outcomes)
        parts = round_.finish_parts(DISK_FLUSH_THREADS)
        if parts:
            await asyncio.gather(*[disk.run(part, DiskWork.FLUSH) for part in parts])

    async def _write(self, block: JournalBlock) -> list[StorageFault | None]:
        await self._disk.write_gathered(block.file, block.position, block.head, block.ranges)
        return []

    def _tell_flushed(self, logs: Sequence[PartitionLog]) -> None:
        """Everything that these logs held when the round was collected is durable."""
        for flushed in self._listeners:
            for log_ in logs:
                flushed(log_)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
