"""The loop that compacts logs, the dirtiest first, in small steps.

Each round looks at the logs of compacted topics and cleans the dirtiest that is due; when none is
due, the loop rests. A cleaning (`storage/compaction`) is a sequence of small steps that run in a
thread. After each step the loop waits as long as the step took, so that compaction uses at most
half a core, and longer where the byte rate demands it.

Leaders and followers clean their own logs: compaction is not replicated. A log with damage is not
cleaned until the mender has replaced it, or no replica has it. A log for which the disk had no room
rests for a while: others, even if they are less dirty, may fit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import DiskFull, KafkaError, StorageFault
from tidemill.core.logs import RateLimit
from tidemill.core.loop.live_pause import LivePause
from tidemill.core.rng import Rng
from tidemill.core.telemetry import Telemetry
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.compaction.cleanable import Cleanable, try_find_cleanable
from tidemill.storage.compaction.cleaning import Compaction
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.rewriting.new_segment import LogChanged

__all__ = ["Cleaner"]

log = logging.getLogger(__name__)

LOGS_PER_SCAN = 50
DAMAGED_REST_S = 60.0
NO_ROOM_REST_S = 300.0

_Candidate = tuple[FilePartitionLog, int]
"""A log, and the offset below which its records cannot be lost."""


@final
class Cleaner:
    """Compacts the logs of one data directory."""

    def __init__(
        self,
        disk: Disk,
        directory: LogDirectory,
        replicas: ReplicaManager,
        *,
        clock: Clock,
        rng: Rng,
        telemetry: Telemetry,
        config: LiveConfig,
        log_changes: asyncio.Lock,
        room: DiskRoom | None = None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._replicas = replicas
        self._clock = clock
        self._rng = rng
        self._telemetry = telemetry
        self._config = config
        self._pause = LivePause(config, lambda now: now.log_cleaner_backoff_ms)
        self._log_changes = log_changes
        self._room = room or DiskRoom()
        self._damaged: dict[FilePartitionLog, float] = {}
        """Until when a log is left alone, so that the mender can look at it; monotonic time."""
        self._without_room: dict[FilePartitionLog, float] = {}
        """Until when a log rests that found the disk too full; monotonic time."""
        self._full_log = RateLimit()
        """A disk that is full for one log is full for many: at most one line a minute."""
        self._holds_logs = False
        """Whether a cleaning has `log_changes`."""

    async def run(self) -> None:
        """Clean what is due, forever."""
        while True:
            if not await self.clean_dirtiest():
                await self._pause.wait()

    async def clean_dirtiest(self) -> bool:
        """Clean one log; False if none is due or the cleaning failed."""
        if self._directory.failure is not None:
            return False
        found = await self._find_dirty()
        ratio = max((one.dirty_ratio for one in found), default=0.0)
        self._telemetry.dirtiest_log_percent = round(100 * ratio)
        due = [one for one in found if one.is_due and one.log not in self._without_room]
        if not due:
            return False
        return await self._clean(max(due, key=lambda one: one.dirty_ratio))

    async def _find_dirty(self) -> list[Cleanable]:
        """Every log with something to clean, due or not."""
        logs = self._directory.logs()
        now = self._clock.monotonic()
        self._damaged = _still_resting(self._damaged, now)
        self._without_room = _still_resting(self._without_room, now)
        found: list[Cleanable] = []
        candidates: list[_Candidate] = []
        for name, log_ in logs.items():
            partition = self._replicas.find(*name)
            is_damaged = log_.damage.is_open or log_ in self._damaged
            if partition is not None and log_.config.compacts and not is_damaged:
                candidates.append((log_, partition.compactable_offset()))
        now_ms = self._clock.wall_ms()
        for start in range(0, len(candidates), LOGS_PER_SCAN):
            some = candidates[start : start + LOGS_PER_SCAN]
            found += await self._disk.run(partial(self._scan, some, now_ms), DiskWork.BACKGROUND)
        return found

    def _scan(self, candidates: Sequence[_Candidate], now_ms: int) -> list[Cleanable]:
        """Runs in a thread. A log that cannot be read now is skipped."""
        found = []
        for log_, end_offset in candidates:
            try:
                one = try_find_cleanable(log_, end_offset, now_ms=now_ms)
            except StorageFault:
                continue
            if one is not None:
                found.append(one)
        return found

    async def _clean(self, found: Cleanable) -> bool:
        job = Compaction(
            self._disk,
            found.log,
            found.segments,
            secret=self._rng.uuid().int,
            dedupe_buffer_bytes=self._config.current.log_cleaner_dedupe_buffer_size,
            now_ms=self._clock.wall_ms(),
            take_room=self._room.take_for_own,
        )
        if found.log.is_being_rewritten:
            return False
        found.log.is_being_rewritten = True
        try:
            await self._run_steps(job)
        except LogChanged:
            return True
        except (KafkaError, StorageFault) as fault:
            return job.log_has_changed or self._note_failure(job, found, fault)
        finally:
            found.log.is_being_rewritten = False
        self._telemetry.cleanings += 1
        log.debug(
            "cleaned %s: %d bytes to %d, %d records dropped",
            found.log.directory,
            job.bytes_read,
            job.bytes_written,
            job.records_dropped,
        )
        return True

    async def _run_steps(self, job: Compaction) -> None:
        telemetry = self._telemetry
        steps = job.steps()
        moved_bytes = segments = 0
        spent_s = 0.0
        try:
            for step in steps:
                await self._hold_logs(job.is_committing)
                started = self._clock.monotonic()
                await self._disk.run(step, DiskWork.BACKGROUND)
                spent_s += self._clock.monotonic() - started
                if job.is_committing:
                    continue  # others wait: the pause comes later
                before, moved_bytes = moved_bytes, job.bytes_read + job.bytes_written
                telemetry.cleaned_bytes += moved_bytes - before
                telemetry.cleaned_segments += job.segments_cleaned - segments
                segments = job.segments_cleaned
                bytes_per_second = self._config.current.log_cleaner_io_max_bytes_per_second
                by_rate_s = (moved_bytes - before) / bytes_per_second
                await asyncio.sleep(max(spent_s, by_rate_s - spent_s))
                spent_s = 0.0
        finally:
            try:
                steps.close()  # removes files, which may fail too
            finally:
                await self._hold_logs(False)

    async def _hold_logs(self, wanted: bool) -> None:
        """While a new segment is put in place, nothing else may change the files of logs."""
        if wanted and not self._holds_logs:
            await self._log_changes.acquire()
        if not wanted and self._holds_logs:
            self._log_changes.release()
        self._holds_logs = wanted

    def _note_failure(
        self, job: Compaction, found: Cleanable, fault: KafkaError | StorageFault
    ) -> bool:
        """Report the failure; returns whether another log may be tried at once."""
        self._telemetry.cleaning_failures += 1
        now = self._clock.monotonic()
        is_full = isinstance(fault, DiskFull)
        if not is_full or self._full_log.allows("full", now):
            log.error("compaction of %s failed: %s", found.log.directory, fault)
        if is_full:
            self._without_room[found.log] = now + NO_ROOM_REST_S
            return True
        if isinstance(fault, KafkaError):
            self._directory.doubt(segment.path for segment in found.segments)
            self._damaged[found.log] = now + DAMAGED_REST_S
            return True
        if job.is_committing:
            self._directory.fail(fault)
        return False


def _still_resting(
    until: dict[FilePartitionLog, float], now: float
) -> dict[FilePartitionLog, float]:
    return {log_: end for log_, end in until.items() if now < end}
