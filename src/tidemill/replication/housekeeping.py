"""The slow loops beside the logs: retention, checkpoints, the scrub; and the orderly end.

Each takes small slices and lets the event loop go on between them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.disk import Disk
from tidemill.storage.log_directory import LogDirectory
from tidemill.storage.retention import RetentionPass
from tidemill.storage.scrub import Scrub

__all__ = ["Housekeeping"]

log = logging.getLogger(__name__)

LOGS_PER_SLICE = 50
FILES_PER_SLICE = 50
CHECKPOINT_INTERVAL_S = 60.0
SCRUB_LOOK_INTERVAL_S = 1.0


@final
class Housekeeping:
    """Everything that a data directory needs done now and then."""

    def __init__(
        self,
        disk: Disk,
        directory: LogDirectory,
        replicas: ReplicaManager,
        *,
        clock: Clock,
        retention_interval_s: float,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._replicas = replicas
        self._clock = clock
        self._retention_interval_s = retention_interval_s
        self._retention = RetentionPass(directory, self._high_watermark_of)
        self._scrub = Scrub(disk, directory.partition_paths)

    def _high_watermark_of(self, name: TopicPartition) -> int:
        partition = self._replicas.find(*name)
        return 0 if partition is None else partition.high_watermark

    async def run_retention(self) -> None:
        """Drop what time, size or start offset allow, pass after pass."""
        while True:
            await asyncio.sleep(self._retention_interval_s)
            try:
                while not self._retention.run_slice(self._clock.wall_ms(), LOGS_PER_SLICE):
                    await asyncio.sleep(0)
                while not self._retention.purge_slice(FILES_PER_SLICE):
                    await asyncio.sleep(0)
            except StorageFault as fault:
                log.error("retention: %s", fault)

    async def run_checkpoints(self) -> None:
        """Write down how far everything is flushed, so that recovery need not look further back."""
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_S)
            await self.checkpoint()

    async def checkpoint(self) -> None:
        if self._directory.offline:
            return
        write = self._directory.take_checkpoint(self._replicas.high_watermarks())
        try:
            await self._disk.run(write)
        except StorageFault as fault:
            log.error("checkpoint: %s", fault)

    async def run_scrub(self) -> None:
        """Read closed segments slowly and compare their checksums."""
        while True:
            await asyncio.sleep(SCRUB_LOOK_INTERVAL_S)
            part = self._scrub.next_slice(self._monotonic_ms())
            if part is None:
                continue
            await self._disk.run(part.run)
            for damage in self._scrub.finish(part, self._monotonic_ms()):
                log.error("damage in %s at byte %d: %s", damage.path, damage.position, damage.detail)

    async def close(self) -> None:
        """Everything is flushed: write the last checkpoint and the mark of a clean end."""
        if not self._directory.offline:
            self._directory.close(self._replicas.high_watermarks())

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
