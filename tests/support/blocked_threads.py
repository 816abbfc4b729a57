"""Occupies the threads of a disk until a test lets them go."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import final

from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork

DEADLINE_S = 30.0
"""A test that forgets to release its threads fails instead of hanging."""


@final
class BlockedThreads:
    """Operations that stand in threads of one kind of work, as on a disk that does not answer."""

    def __init__(self, disk: Disk, work: DiskWork) -> None:
        self._disk = disk
        self._work = work
        self._may_go = Event()
        self._tasks: list[asyncio.Task[bool]] = []

    async def block(self, count: int) -> None:
        """Occupy `count` more threads; returns when the operations stand in them."""
        loop = asyncio.get_running_loop()
        begun = [asyncio.Event() for _ in range(count)]

        def stand(mine: asyncio.Event) -> bool:
            loop.call_soon_threadsafe(mine.set)
            return self._may_go.wait(DEADLINE_S)

        for mine in begun:
            standing = self._disk.run(lambda mine=mine: stand(mine), self._work)
            self._tasks.append(asyncio.create_task(standing))
        for mine in begun:
            await mine.wait()

    async def release(self) -> None:
        """Let all of them go, and wait for their end."""
        self._may_go.set()
        assert all(await asyncio.gather(*self._tasks)), "the threads were never released"
