"""The loop that looks for damage at rest and hears of what reads have found, for the mender."""

from __future__ import annotations

import asyncio
import logging
from typing import final

from tidemill.core.clock import Clock
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.upkeep.mender import Mender
from tidemill.upkeep.scrub import Scrub

__all__ = ["DamageWatch"]

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0


@final
class DamageWatch:
    """Looks after the logs of one data directory."""

    def __init__(
        self, disk: Disk, directory: LogDirectory, mender: Mender, *, clock: Clock
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._mender = mender
        self._clock = clock
        self._scrub = Scrub(disk, directory.paths)

    async def run(self) -> None:
        """Read closed segments slowly and verify their checksums, forever."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for name, base_offset in self._directory.take_doubtful():
                self._mender.doubt(name, base_offset)
            part = self._scrub.next_slice(self._monotonic_ms())
            if part is None:
                continue
            await self._disk.run(part.run, DiskWork.BACKGROUND)
            for damage in self._scrub.finish(part, self._monotonic_ms()):
                log.error(
                    "damage in %s at byte %d: %s", damage.path, damage.position, damage.detail
                )
                self._mender.found(damage.partition, damage.offsets)

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
