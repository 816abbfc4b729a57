"""Syncs and gathered writes in threads that do not need the interpreter's lock.

A thread of Python's executor takes the lock twice per operation, to begin and to tell the outcome.
Beside a busy event loop each of the two takes milliseconds, and sometimes a second. The threads of
`hot/disk_worker` take it never: the loop leaves a job and goes on, a thread does the job, and a
descriptor that the loop watches becomes readable.

Each kind of work has a worker of its own: a sync that nobody waits for cannot delay a flush round.

    kind         threads   jobs in flight
    FLUSH        4         4     as `Disk.run`: rounds run one at a time. A job's files are spread
    BACKGROUND   1         65    over the threads
    READ         none

A job whose caller was cancelled runs to its end, and its outcome is dropped. Its files stay open
until then. One event loop at a time uses a worker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tidemill.core.errors import StorageFault, invariant
from tidemill.core.limits import (
    DISK_BACKGROUND_SYNC_THREADS,
    DISK_BACKGROUND_WAITING_MAX,
    DISK_FLUSH_THREADS,
)
from tidemill.hot.disk_worker import SHORT_READ, TARGET, DiskWorker, Failure
from tidemill.storage.files.disk_work import DiskLoad, DiskWork
from tidemill.storage.files.gathered_write import check_gathered, short_range
from tidemill.storage.files.os_file import Buffer, OsFile, fault_of

__all__ = ["DiskJobs"]

_THREADS = {
    DiskWork.FLUSH: DISK_FLUSH_THREADS,
    DiskWork.BACKGROUND: DISK_BACKGROUND_SYNC_THREADS,
    DiskWork.READ: 0,
}
_WAITING_MAX = {
    DiskWork.FLUSH: 0,
    DiskWork.BACKGROUND: DISK_BACKGROUND_WAITING_MAX,
    DiskWork.READ: 0,
}


@final
@dataclass(slots=True, eq=False)
class _Ticket:
    """What the worker holds while a job is not settled."""

    ended: asyncio.Future[list[Failure]]
    holds: object
    """The files of the job: while they are held, none of their descriptors is closed."""


@final
class DiskJobs:
    """The jobs of one kind of work. Threads start with the first job and end in `close`."""

    def __init__(self, work: DiskWork) -> None:
        self._work = work
        self._threads = _THREADS[work]
        self._in_flight_max = self._threads + _WAITING_MAX[work]
        self._worker: DiskWorker | None = None
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that watches for outcomes."""
        self._in_flight = 0
        """Submitted, and the outcome not taken yet."""
        self._waited = 0

    @property
    def load(self) -> DiskLoad:
        if self._worker is None or self._process != os.getpid():
            return DiskLoad(waited=self._waited)
        running, waiting = self._worker.load()
        return DiskLoad(running, waiting, self._waited)

    async def sync(self, files: Sequence[OsFile]) -> list[StorageFault | None]:
        """One outcome per file, in order; every file is tried."""
        outcomes: list[StorageFault | None] = [None] * len(files)
        if not files:
            return outcomes
        worker, ticket = self._begin(tuple(files))
        worker.submit_sync(ticket, [file.descriptor for file in files])
        for index, code in await self._outcome(ticket):
            outcomes[index] = _fault(code, files[index].path)
        return outcomes

    async def write_gathered(
        self,
        target: OsFile,
        position: int,
        head: Buffer,
        ranges: Sequence[tuple[OsFile, int, int]],
    ) -> None:
        """Raises StorageFault."""
        check_gathered(head, ranges)
        worker, ticket = self._begin((target, tuple(ranges)))
        parts = [(file.descriptor, start, size) for file, start, size in ranges]
        worker.submit_gathered(ticket, target.descriptor, position, bytes(head), parts)
        for index, code in await self._outcome(ticket):
            if index == TARGET:
                raise _fault(code, target.path)
            file, start, size = ranges[index]
            raise (
                short_range(file.path, start, size)
                if code == SHORT_READ
                else _fault(code, file.path)
            )

    def close(self) -> None:
        """Wait for all jobs, tell their outcomes, and end the threads."""
        worker, self._worker = self._worker, None
        if worker is None or self._process != os.getpid():
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(worker.fileno())
        self._loop = None
        worker.close()
        self._settle(worker)

    def _begin(self, holds: object) -> tuple[DiskWorker, _Ticket]:
        """Get ready for a job, and to hear of its end."""
        loop = asyncio.get_running_loop()
        if self._worker is None or self._process != os.getpid():
            self._start()
        worker = self._worker
        assert worker is not None
        if loop is not self._loop:
            self._watch(worker, loop)
        invariant(
            self._in_flight < self._in_flight_max,
            f"disk work without a bound: {self._work.value}",
        )
        return worker, _Ticket(loop.create_future(), holds)

    async def _outcome(self, ticket: _Ticket) -> list[Failure]:
        """Count a job that was submitted, and wait for its end."""
        self._waited += self._in_flight >= self._threads
        self._in_flight += 1
        return await ticket.ended

    def _start(self) -> None:
        """In a process that was forked off, too: the threads stayed behind."""
        invariant(self._threads > 0, f"no threads for jobs of this kind: {self._work.value}")
        self._worker = DiskWorker(self._threads, f"disk-{self._work.value}")
        self._process, self._loop, self._in_flight = os.getpid(), None, 0

    def _watch(self, worker: DiskWorker, loop: asyncio.AbstractEventLoop) -> None:
        invariant(self._loop is None or self._loop.is_closed(), "two loops share a disk")
        loop.add_reader(worker.fileno(), self._settle, worker)
        self._loop = loop

    def _settle(self, worker: DiskWorker) -> None:
        for ticket, failures in worker.take_outcomes():
            assert isinstance(ticket, _Ticket)
            self._in_flight -= 1
            ended = ticket.ended
            if not ended.done() and not ended.get_loop().is_closed():
                ended.set_result(failures)


def _fault(code: int, path: str) -> StorageFault:
    return fault_of(OSError(code, os.strerror(code)), path)
