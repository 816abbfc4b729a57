"""Notes every disk call that is made on the event loop instead of through `Disk.run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, final

from tidemill.storage.files.disk_work import DiskWork
from tidemill.testing.sim.disk import SimDisk

T = TypeVar("T")

SLOW_CALLS = frozenset({"sync", "sync_directory", "rename", "unlink", "truncate", "pread"})
"""Calls that may wait for the disk. A write into the page cache and a new file do not."""


@final
class LoopWatch:
    """Watches a simulated disk from now on."""

    def __init__(self, disk: SimDisk) -> None:
        self.slow_calls: list[tuple[str, str]] = []
        """Made on the loop: the call and its path."""
        self.threaded: list[tuple[str, str]] = []
        """The same, made in `Disk.run`."""
        self._threads = 0
        self._run, self._maybe_fail = disk.run, disk.maybe_fail
        disk.run = self._watch_run  # type: ignore[method-assign]  # of this one disk
        disk.maybe_fail = self._watch_call  # type: ignore[method-assign]

    async def _watch_run(self, operation: Callable[[], T], work: DiskWork = DiskWork.READ) -> T:
        def counted() -> T:
            self._threads += 1
            try:
                return operation()
            finally:
                self._threads -= 1

        return await self._run(counted, work)

    def _watch_call(self, call: str, path: str) -> None:
        if call in SLOW_CALLS:
            (self.threaded if self._threads else self.slow_calls).append((call, path))
        self._maybe_fail(call, path)
