"""The loop that looks how much of the disk is free, for the reserve that records leave.

Once a second, and sooner when the appends say so, in a thread: the file system may hang. A look
that fails lifts the limits: a full disk is then noticed by the write that it refuses.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import StorageFault
from tidemill.core.limits import MIB
from tidemill.core.logs import RateLimit
from tidemill.core.telemetry import Telemetry
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.storage.files.disk_work import DiskWork

__all__ = ["RoomWatch"]

log = logging.getLogger(__name__)

LOOK_S = 1.0
LOOK_GAP_S = 0.02
"""Looks that appends ask for are no closer."""


@final
class RoomWatch:
    """Tells the room of one data directory what its file system says."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        room: DiskRoom,
        *,
        clock: Clock,
        telemetry: Telemetry,
        config: LiveConfig,
    ) -> None:
        self._disk = disk
        self._path = path
        self._room = room
        self._clock = clock
        self._telemetry = telemetry
        self._config = config
        self._due = asyncio.Event()
        self._fault_log = RateLimit()
        room.on_due = self._due.set

    async def run(self) -> None:
        """Look forever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_GAP_S)
            try:
                async with asyncio.timeout(LOOK_S - LOOK_GAP_S):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()

    async def look(self) -> None:
        """Ask the file system once, and say what has changed by that."""
        room, telemetry = self._room, self._telemetry
        was_refusing, before = room.is_refusing, room.begin_look()
        try:
            space = await self._disk.run(partial(self._disk.space, self._path), DiskWork.BACKGROUND)
        except StorageFault as fault:
            room.forget()
            telemetry.disk_refuses_records = False
            if self._fault_log.allows(self._path, self._clock.monotonic()):
                log.error("how much of the disk is free is unknown, there is no reserve: %s", fault)
            return
        free_bytes = space.usable_bytes
        room.end_look(
            before,
            total_bytes=space.total_bytes,
            free_bytes=free_bytes,
            reserve_bytes=self._config.current.disk_reserve_bytes,
        )
        telemetry.disk_free_bytes = free_bytes
        telemetry.disk_refuses_records = room.is_refusing
        if room.is_refusing != was_refusing:
            self._report(free_bytes)

    def _report(self, free_bytes: int) -> None:
        free_mib, reserve_mib = free_bytes / MIB, self._room.reserve_bytes / MIB
        if self._room.is_refusing:
            log.error(
                "No space left for records in %s: %.1f MiB are free, and %.1f MiB are kept for "
                "metadata and deletions. Delete topics or records, or give the disk more room",
                self._path,
                free_mib,
                reserve_mib,
            )
        else:
            log.warning("%s: %.1f MiB are free: records are accepted again", self._path, free_mib)
