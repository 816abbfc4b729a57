"""Cuts the log of a partition that follows: in threads, with nothing else beside it.

A cut waits for other changes of files (`log_changes`), until the journal has nothing of the log
(`journal_settler`), and for the running flush round, which must not see it. From the moment it
begins, the files are longer than the log says, so it has to end: a full disk makes it wait, any
other fault takes the data directory offline. A partition that becomes leader meanwhile leads when
the cut has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import final

from tidemill.core.errors import DiskFull, StorageFault
from tidemill.replication.flushing.flusher import Flusher
from tidemill.replication.flushing.journal_settler import JournalSettler
from tidemill.replication.follower_log import FollowerLog
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.interface import LogCut

__all__ = ["LogCutter"]

log = logging.getLogger(__name__)

RETRY_S = 1.0


@final
class LogCutter:
    """Cuts logs of one data directory, one at a time."""

    def __init__(
        self,
        disk: Disk,
        flusher: Flusher,
        *,
        settler: JournalSettler,
        log_changes: asyncio.Lock,
        fail: Callable[[StorageFault], None],
    ) -> None:
        """`fail` takes the data directory offline."""
        self._disk = disk
        self._flusher = flusher
        self._settler = settler
        self._log_changes = log_changes
        self._fail = fail

    async def cut(
        self,
        follower: FollowerLog,
        plan: Callable[[], LogCut | None],
        *,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Do what `plan` returns, unless it is no longer wanted when its turn has come.

        Raises StorageFault, and KafkaError if the log is damaged; then the log is not cut, or its
        directory is offline.
        """
        is_ours = has_begun = is_done = False
        try:
            async with self._log_changes:
                if follower.is_being_cut:
                    return  # by a cut that waits for room; the next fetch asks again
                cut = plan() if is_wanted() else None
                if cut is None:
                    return
                is_ours = follower.is_being_cut = True
                await self._disk.run(cut.read, DiskWork.BACKGROUND)
                async with await self._settled(cut):
                    if not is_wanted():
                        return
                    has_begun = await self._begin(follower, cut)
                    is_done = await self._try_perform(cut)
            if not is_done:
                log.error("the log of %s cannot be cut while the disk is full", follower.name)
            while not is_done:
                await asyncio.sleep(RETRY_S)  # others may make room meanwhile
                async with self._log_changes, self._flusher.between_rounds():
                    is_done = await self._try_perform(cut)
        finally:
            if is_ours and (is_done or not has_begun):
                follower.cut_ended()

    async def _settled(self, cut: LogCut) -> AsyncExitStack:
        """Holds up flush rounds, with nothing of the log in the journal. Raises StorageFault."""
        while True:
            await self._settler.settle(cut.is_in_journal)
            async with AsyncExitStack() as held:
                await held.enter_async_context(self._flusher.between_rounds())
                if not cut.is_in_journal():  # the round before may have put it there
                    return held.pop_all()

    async def _begin(self, follower: FollowerLog, cut: LogCut) -> bool:
        while not follower.begin_cut(cut):
            await self._disk.run(cut.read, DiskWork.BACKGROUND)
        return True

    async def _try_perform(self, cut: LogCut) -> bool:
        """False if the disk is full."""
        try:
            await self._disk.run(cut.perform, DiskWork.BACKGROUND)
        except DiskFull:
            return False
        except StorageFault as fault:
            self._fail(fault)
            raise
        cut.end()
        return True
