"""The slow loops of a data directory: openings, retention, checkpoints, scrub; and its shutdown.

Each loop works in small slices and yields to the event loop between them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import DiskBusy, StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.core.logs import RateLimit
from tidemill.core.loop.live_pause import LivePause
from tidemill.core.loop.pacing import run_slices
from tidemill.replication.flushing.flusher import Flusher
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.directory.metadata_note import MetadataNote
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.recovery.cut_files import purge_cut_files
from tidemill.upkeep.log_opener import LogOpener
from tidemill.upkeep.producer_expiry import ProducerExpiry
from tidemill.upkeep.retention import RetentionPass, RetentionSlice

__all__ = ["Housekeeping"]

log = logging.getLogger(__name__)

LOGS_PER_SLICE = 50
FILES_PER_SLICE = 50
PRODUCERS_PER_SLICE = 2_000
"""Expired producers that are forgotten in one turn of the loop: about a millisecond."""
CHECKPOINT_INTERVAL_S = 60.0
CLOSE_RETRY_S = 0.01


@final
class Housekeeping:
    """The background work of one data directory."""

    def __init__(
        self,
        disk: Disk,
        directory: LogDirectory,
        replicas: ReplicaManager,
        *,
        clock: Clock,
        flusher: Flusher,
        log_changes: asyncio.Lock,
        config: LiveConfig,
        note: MetadataNote | None = None,
        start_moved: Callable[[TopicPartition], None] = lambda _name: None,
    ) -> None:
        """`start_moved` hears of logs whose start retention has moved."""
        self._disk = disk
        self._directory = directory
        self._replicas = replicas
        self._clock = clock
        self._flusher = flusher
        self._log_changes = log_changes
        self._note = note
        self._start_moved = start_moved
        self._one_at_a_time = asyncio.Lock()
        self._retention_pause = LivePause(config, lambda now: now.log_retention_check_interval_ms)
        self._retention = RetentionPass(directory, self._droppable_offset_of)
        self._log = RateLimit()
        """Failed retention: at most one log line per partition and minute."""
        self._producer_expiry = ProducerExpiry(directory)
        self._purging = asyncio.Lock()
        self._purge_due = asyncio.Event()
        self._opener = LogOpener(
            disk, directory, replicas, log_changes=log_changes, settled=self._purge_due.set
        )

    def _droppable_offset_of(self, name: TopicPartition) -> int:
        partition = self._replicas.find(*name)
        return 0 if partition is None else partition.droppable_offset()

    async def run_retention(self) -> None:
        """Drop segments that are past their age, size or start offset, forever."""
        while True:
            await self._retention_pause.wait()
            now_ms = self._clock.wall_ms()
            for drop in (
                self._apply_retention,
                self._purge_removed_logs,
                self._expire_producers,
                self.purge_cut_files,
            ):
                try:
                    await drop(now_ms)
                except StorageFault as fault:
                    log.error("retention failed: %s", fault)

    async def _apply_retention(self, now_ms: int) -> None:
        is_done = False
        while not is_done:
            part = self._retention.next_slice(now_ms, LOGS_PER_SLICE)
            more = True
            while more:
                await self._disk.run(part.look, DiskWork.BACKGROUND)
                async with self._log_changes:
                    more = await self._drop_segments(part)
            for name, fault in part.faults.items():
                if self._log.allows(str(name), self._clock.monotonic()):
                    log.error("retention of %s failed: %s", name, fault)
            is_done = part.is_last

    async def _drop_segments(self, part: RetentionSlice) -> bool:
        if not part.plan():
            return False
        await self._disk.run(part.drop, DiskWork.BACKGROUND)
        for name in part.finish():
            self._start_moved(name)
        return True

    async def run_purges(self) -> None:
        """Unlink the files of deleted logs, forever: their room is wanted, on disk and in memory.

        What fails here is tried again with the next retention.
        """
        while True:
            await self._purge_due.wait()
            self._purge_due.clear()
            try:
                await self._purge_removed_logs(self._clock.wall_ms())
            except StorageFault as fault:
                log.error("removing the files of deleted logs failed: %s", fault)

    async def _purge_removed_logs(self, _now_ms: int) -> None:
        purge = partial(self._directory.purge_slice, FILES_PER_SLICE)
        async with self._purging:
            while not await self._disk.run(purge, DiskWork.BACKGROUND):
                pass

    async def _expire_producers(self, now_ms: int) -> None:
        run_slice = partial(
            self._producer_expiry.run_slice,
            now_ms,
            logs_max=LOGS_PER_SLICE,
            entries_max=PRODUCERS_PER_SLICE,
        )
        await run_slices(run_slice)

    async def purge_cut_files(self, now_ms: int) -> None:
        """Delete the side files of earlier recoveries that are old enough."""
        logs = [(log_.directory, log_.config) for log_ in self._directory.logs().values()]
        for start in range(0, len(logs), LOGS_PER_SLICE):
            some = logs[start : start + LOGS_PER_SLICE]
            purge = partial(purge_cut_files, self._disk, some, now_ms)
            await self._disk.run(purge, DiskWork.BACKGROUND)

    async def run_openings(self) -> None:
        """Make the logs of new partitions."""
        await self._opener.run()

    async def run_checkpoints(self) -> None:
        """Record how far every log is flushed, so that recovery need not read further back."""
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_S)
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write what shortens the next start (snapshots, indexes), then the checkpoint file."""
        changed = self._directory.changed_logs()
        collect = partial(self._directory.collect_checkpoint, changed, LOGS_PER_SLICE)
        more = True
        while more:
            more = await self._flusher.run_round(collect)
        if self._directory.failure is not None:
            return
        try:
            await self.write_checkpoint()
        except StorageFault as fault:
            log.error("checkpoint failed: %s", fault)

    async def write_checkpoint(self) -> None:
        """Make durable where each log starts and how far it is flushed. Raises StorageFault."""
        async with self._one_at_a_time:
            failure = self._directory.failure
            if failure is not None:  # perhaps since this waits
                raise StorageFault(f"{self._directory.path} is offline: {failure}")
            write = self._directory.take_checkpoint(self._replicas.high_watermarks())
            # As READ: DeleteRecords may wait for this one, or behind it.
            await self._disk.run(self._noting_metadata(write))

    async def close(self, *, is_clean: bool = True) -> None:
        """Flush everything, write the last checkpoint and, if `is_clean`, the marker of that."""
        marks = self._replicas.high_watermarks()
        close = partial(self._directory.close, marks, is_clean=is_clean)
        while True:
            try:
                return await self._disk.run(self._noting_metadata(close))
            except DiskBusy:  # by reads whose callers have ended: they are skipped one by one
                await asyncio.sleep(CLOSE_RETRY_S)

    def _noting_metadata(self, write: Callable[[], None]) -> Callable[[], None]:
        """The same, after a note of the metadata that is known now."""
        if self._note is None:
            return write
        note = self._note.take()

        def both() -> None:
            try:
                note()
            except StorageFault as fault:  # the older note stays, which is never wrong
                log.error("the version of the metadata was not noted: %s", fault)
            write()

        return both
