"""The background loops over one dirty log, for tests on simulated time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from tests.support.batches import NOW_MS
from tests.support.compacting import CONFIG as COMPACTED
from tests.support.compacting import put, seal
from tests.support.directories import ORDERS, ORDERS_PATH, TOPIC_ID, opened
from tidemill.core.rng import SeededRng
from tidemill.core.telemetry import Telemetry
from tidemill.replication.pending_logs import PendingLogs
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep.cleaner import Cleaner
from tidemill.upkeep.housekeeping import Housekeeping
from tidemill.upkeep.room_watch import RoomWatch

CUT = f"{ORDERS_PATH}/{0:020d}.log.cut-3"
"""A side file of an earlier recovery, old enough to be deleted."""


class Upkeep:
    """A data directory with one dirty log and an old side file, and the loops over it."""

    def __init__(self, live, key_count=50):
        self.live = live
        self.pending_logs = PendingLogs()
        self.disk = SimDisk()
        self.directory = opened(self.disk)
        self.telemetry = Telemetry()
        self.log = self.directory.create_log(ORDERS, TOPIC_ID, COMPACTED)
        self.disk.open(CUT, create=True)
        self.dirty(key_count)
        self.dirty(key_count)
        clock = ManualClock(wall_ms=NOW_MS)
        log_changes = asyncio.Lock()
        self.cleaner = Cleaner(
            self.disk,
            self.directory,
            self,
            clock=clock,
            rng=SeededRng(1),
            telemetry=self.telemetry,
            config=self.live,
            log_changes=log_changes,
        )
        self.housekeeping = Housekeeping(
            self.disk,
            self.directory,
            self,
            clock=clock,
            flusher=None,
            log_changes=log_changes,
            config=self.live,
        )

        self.room = DiskRoom()
        self.room_watch = RoomWatch(
            self.disk,
            self.directory.path,
            self.room,
            clock=clock,
            telemetry=self.telemetry,
            config=self.live,
        )

    def used_bytes(self):
        space = self.disk.space("/")
        return space.total_bytes - space.usable_bytes

    def find(self, topic, index):
        return SimpleNamespace(compactable_offset=lambda: 1 << 40, droppable_offset=lambda: 1 << 40)

    def dirty(self, key_count):
        put(self.log, *((b"k%d" % number, b"v") for number in range(key_count)))
        seal(self.log)

    def set(self, key, value):
        assert self.live.override(cluster={key: str(value)}, own={}) == []

    async def clean(self):
        """Clean all that is due; the number of cleanings and the seconds that they took."""
        loop, count = asyncio.get_running_loop(), 0
        started = loop.time()
        while await self.cleaner.clean_dirtiest():
            count += 1
        return count, loop.time() - started
