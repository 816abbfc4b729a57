"""The kinds of disk work that leave the event loop, and the threads of each kind.

Each kind has threads of its own, so that no kind waits behind another one:

    kind         threads   may wait   what it is
    FLUSH        4         0          the syncs of the one flush round of the data directory
    READ         4         4,096      what a client, a start or a shutdown waits for
    BACKGROUND   2         64         what nobody waits for: scrub, cleaning, retention, loading

An operation that finds all threads of its kind busy waits its turn, first come, first served: the
answer is late, and a client that waits for it asks for no more. Beyond the bound of the queue:

- READ is refused with `DiskBusy` before anything has run. Only a flood gets there: handlers in
  several steps are 32 at a time, and a consumer has one fetch in flight. What waits longer than
  clients wait would be read for nobody.
- FLUSH and BACKGROUND cannot get there: rounds run one at a time and have no more parts than there
  are threads, and each background loop awaits one operation at a time. More is a bug.

An operation whose caller was cancelled is skipped if it has not begun; one that has begun runs to
its end. It keeps its place in the queue, and counts, until a thread gets to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import TypeVar, final

from tidemill.core.errors import DiskBusy, invariant
from tidemill.core.limits import (
    DISK_BACKGROUND_THREADS,
    DISK_BACKGROUND_WAITING_MAX,
    DISK_FLUSH_THREADS,
    DISK_READ_THREADS,
    DISK_READS_WAITING_MAX,
)

__all__ = ["DiskLoad", "DiskThreads", "DiskWork"]

T = TypeVar("T")


@final
class DiskWork(Enum):
    """Why an operation leaves the event loop: decides in which threads it runs."""

    FLUSH = "flush"
    """The syncs of a flush round, and nothing else: acknowledgements wait for them."""
    READ = "read"
    """What a client waits for: cold reads, time lookups, new logs; also a start and a shutdown."""
    BACKGROUND = "background"
    """What no client waits for: scrub, cleaning, retention, coordinators that load."""


@final
@dataclass(frozen=True, slots=True)
class DiskLoad:
    """How busy the threads of one kind of work are, and how often they were too few."""

    running: int = 0
    waiting: int = 0
    waited: int = 0
    """Operations so far that found every thread busy."""
    refused: int = 0
    """Operations so far that found the queue full."""

    def __add__(self, other: DiskLoad) -> DiskLoad:
        return DiskLoad(
            self.running + other.running,
            self.waiting + other.waiting,
            self.waited + other.waited,
            self.refused + other.refused,
        )


_THREADS = {
    DiskWork.FLUSH: DISK_FLUSH_THREADS,
    DiskWork.READ: DISK_READ_THREADS,
    DiskWork.BACKGROUND: DISK_BACKGROUND_THREADS,
}
_WAITING_MAX = {
    DiskWork.FLUSH: 0,
    DiskWork.READ: DISK_READS_WAITING_MAX,
    DiskWork.BACKGROUND: DISK_BACKGROUND_WAITING_MAX,
}


@final
class _PoolLoad:
    """Counts the operations of one pool; the loop and the threads change it."""

    def __init__(self, threads: int, waiting_max: int) -> None:
        self._threads = threads
        self._in_flight_max = threads + waiting_max
        self._lock = Lock()
        self._in_flight = 0
        """Submitted and not ended."""
        self._running = 0
        self._waited = 0
        self._refused = 0

    def try_submit(self) -> bool:
        """Count an operation as waiting; False if the queue is full."""
        with self._lock:
            if self._in_flight >= self._in_flight_max:
                self._refused += 1
                return False
            self._waited += self._in_flight >= self._threads
            self._in_flight += 1
            return True

    def begin(self) -> None:
        with self._lock:
            self._running += 1

    def end(self) -> None:
        with self._lock:
            self._running -= 1
            self._in_flight -= 1

    def now(self) -> DiskLoad:
        with self._lock:
            waiting = self._in_flight - self._running
            return DiskLoad(self._running, waiting, self._waited, self._refused)


@final
class DiskThreads:
    """The threads of one kind of work. They start with the first operations and end in `close`."""

    def __init__(self, work: DiskWork) -> None:
        self._work = work
        self._load = _PoolLoad(_THREADS[work], _WAITING_MAX[work])
        self._pool: ThreadPoolExecutor | None = None

    @property
    def load(self) -> DiskLoad:
        return self._load.now()

    async def run(self, operation: Callable[[], T]) -> T:
        """In a thread. DiskBusy: too many reads wait, and this one did not run."""
        if not self._load.try_submit():
            invariant(self._work is DiskWork.READ, f"disk work without a bound: {self._work.value}")
            raise DiskBusy("too many reads wait for the disk")
        if self._pool is None:
            name = f"disk-{self._work.value}"
            self._pool = ThreadPoolExecutor(_THREADS[self._work], thread_name_prefix=name)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        in_thread = self._pool.submit(self._work_off, operation, ended)
        in_thread.add_done_callback(lambda done: _tell(loop, ended, done))
        return await ended

    def _work_off(self, operation: Callable[[], T], ended: asyncio.Future[T]) -> T | None:
        """Runs in a thread; None if the caller was cancelled meanwhile."""
        self._load.begin()
        try:
            return None if ended.cancelled() else operation()
        finally:
            self._load.end()

    def close(self) -> None:
        """Wait for running operations and end the threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


def _tell(
    loop: asyncio.AbstractEventLoop, ended: asyncio.Future[T], done: Future[T | None]
) -> None:
    """Pass an outcome on to the event loop. Unlike asyncio's own way, no cancelling comes back:
    a cancelled operation has to be counted out of the queue by the thread that finds it."""

    def settle() -> None:
        if ended.cancelled():
            return
        error = done.exception()
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(done.result())  # type: ignore[arg-type]  # None: it was cancelled

    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)
