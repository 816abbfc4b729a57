"""Passes over offsets that no replica has: the log of a follower goes on behind them (ADR 0025).

A leader that has given a range up cannot send it. Its followers put a batch without records there,
and note that the range is lost: whoever leads later refuses to read it, as the leader of now does.
The note is durable before the batch is appended. A note that no such batch has followed is taken
back, at the latest by the next start, which finds no or other records there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import final

from tidemill.core.clock import Clock
from tidemill.replication.partition import Partition
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.interface import PartitionLog
from tidemill.storage.state.log_damage import DamagedRange, store_damage
from tidemill.wire.records import empty_batch

__all__ = ["LostOffsets"]

log = logging.getLogger(__name__)


@final
class LostOffsets:
    """Passes over them in the logs of one data directory, one at a time."""

    def __init__(self, disk: Disk, *, clock: Clock, log_changes: asyncio.Lock) -> None:
        self._disk = disk
        self._clock = clock
        self._log_changes = log_changes

    async def pass_over(
        self,
        partition: Partition,
        lost: DamagedRange,
        *,
        leader_epoch: int,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Append an empty batch of that epoch, unless the log has changed when its turn has come.

        Raises KafkaError if the batch must not follow ours, and StorageFault.
        """
        log_ = partition.log

        def still_fits() -> bool:
            ends_there = not log_.is_closed and log_.log_end_offset == lost.start_offset
            return ends_there and is_wanted()

        async with self._log_changes:
            if not still_fits():
                return
            log_.damage.give_up(lost)
            is_done = False
            try:
                await self._store(log_)
                if still_fits():
                    self._append(partition, lost, leader_epoch)
                    is_done = True
            finally:
                if not is_done:
                    log_.damage.mended(lost.start_offset, lost.end_offset)
                    await self._store(log_)

    def _append(self, partition: Partition, lost: DamagedRange, leader_epoch: int) -> None:
        batch = empty_batch(lost.start_offset, lost.end_offset, leader_epoch=leader_epoch)
        partition.as_follower.append(
            batch, high_watermark=partition.high_watermark, now_ms=self._clock.wall_ms()
        )
        log.error(
            "%s: offsets %d to %d are lost: no replica has them",
            partition.name,
            lost.start_offset,
            lost.end_offset - 1,
        )

    async def _store(self, log_: PartitionLog) -> None:
        if log_.directory and not log_.is_closed:
            store = partial(store_damage, self._disk, log_.directory, log_.damage.encode())
            await self._disk.run(store, DiskWork.BACKGROUND)
