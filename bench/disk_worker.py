"""What a flush costs beside an event loop: bare, in Python's threads, and in native ones.

    python -m bench.disk_worker DIRECTORY        under a minute; the machine should be quiet

Each sample writes 200 bytes to a file and then makes them durable; the time is that of the second
part, until the coroutine that waits for it goes on. The ways to do it take turns, so that whatever
else the machine does touches all alike. The loop is uvloop. While it is "busy", another task
computes in slices of 0.3 ms, with a turn of the loop between two of them. The last rows are rounds
of 64 files: each synced by itself, and their bytes gathered into one journal.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial

from tidemill.core.compiled import is_compiled
from tidemill.core.loop.event_loop import new_event_loop
from tidemill.storage.files.disk import DiskFile, OsDisk
from tidemill.storage.files.disk_work import DiskWork

WRITE_BYTES = 200
ROUND_FILES = 64
BUSY_SLICE_S = 0.0003
SAMPLE_S = 8.0
WARM_UP = 20
HEAD = bytes(16 * ROUND_FILES)
JOURNAL_BYTES = 1 << 26

Flush = Callable[[], Awaitable[object]]
Way = tuple[str, Flush, int]
"""Its name, what it does, and how many files it is about."""


class Bench:
    """The files of one run, and the ways to flush them."""

    def __init__(self, disk: OsDisk, directory: str) -> None:
        self._disk = disk
        self._position = 0
        self._data = os.urandom(WRITE_BYTES)
        self.files = [
            disk.open(f"{directory}/{number}", create=True) for number in range(ROUND_FILES)
        ]
        self._journal = disk.open(f"{directory}/journal", create=True)
        for position in range(0, JOURNAL_BYTES, 1 << 20):
            self._journal.pwrite([bytes(1 << 20)], position)
        self._journal.sync()
        self._journal_position = 0

    def write(self, files: list[DiskFile]) -> None:
        for file in files:
            file.pwrite([self._data], self._position)
        self._position += WRITE_BYTES

    async def bare(self) -> None:
        self.files[0].sync()

    async def executor(self) -> None:
        await self._disk.run(self.files[0].sync, DiskWork.FLUSH)

    async def worker(self) -> None:
        await self._disk.sync_files(self.files[:1])

    async def round_in_executor(self) -> None:
        ways = 4
        parts = [partial(_sync_all, self.files[start::ways]) for start in range(ways)]
        await asyncio.gather(*[self._disk.run(part, DiskWork.FLUSH) for part in parts])

    async def round_in_worker(self) -> None:
        await self._disk.sync_files(self.files)

    async def round_gathered(self) -> None:
        start = self._position - WRITE_BYTES
        ranges = [(file, start, WRITE_BYTES) for file in self.files]
        await self._disk.write_gathered(self._journal, self._journal_position, HEAD, ranges)
        size = 4 + len(HEAD) + WRITE_BYTES * ROUND_FILES
        self._journal_position = (self._journal_position + size) % (JOURNAL_BYTES - 2 * size)


def _sync_all(files: list[DiskFile]) -> None:
    for file in files:
        file.sync()


async def compute() -> None:
    """A loop with much to do."""
    while True:
        end = time.perf_counter() + BUSY_SLICE_S
        while time.perf_counter() < end:
            pass
        await asyncio.sleep(0)


async def measure(bench: Bench, ways: list[Way], *, busy: bool) -> list[str]:
    """p50 and p99 of each way."""
    beside = asyncio.create_task(compute()) if busy else None
    costs_us: list[list[float]] = [[] for _ in ways]
    end = time.monotonic() + SAMPLE_S
    while time.monotonic() < end or len(costs_us[0]) < WARM_UP + 3:
        for (_, flush, count), costs in zip(ways, costs_us, strict=True):
            bench.write(bench.files[:count])
            started = time.perf_counter()
            await flush()
            costs.append((time.perf_counter() - started) * 1e6)
            await asyncio.sleep(0)
    if beside is not None:
        beside.cancel()
    return [_quantiles(costs[WARM_UP:]) for costs in costs_us]


def _quantiles(costs_us: list[float]) -> str:
    costs_us.sort()
    p50, p99 = costs_us[len(costs_us) // 2], costs_us[int(len(costs_us) * 0.99)]
    return f"{p50:9,.0f} / {p99:9,.0f}"


async def table(directory: str) -> None:
    disk = OsDisk()
    bench = Bench(disk, directory)
    one_file: list[Way] = [
        ("bare fdatasync", bench.bare, 1),
        ("Disk.run, Python's threads", bench.executor, 1),
        ("Disk.sync_files", bench.worker, 1),
    ]
    rounds: list[Way] = [
        ("64 files, Disk.run", bench.round_in_executor, ROUND_FILES),
        ("64 files, Disk.sync_files", bench.round_in_worker, ROUND_FILES),
        ("64 files, Disk.write_gathered", bench.round_gathered, ROUND_FILES),
    ]
    native = "native" if is_compiled("tidemill.hot.disk_worker") else "plain Python"
    print(f"microseconds, p50 / p99; the worker is {native}")
    print(f"{'':32}{'loop idle':>21}   {'loop busy':>21}")
    for ways in (one_file, rounds):
        idle = await measure(bench, ways, busy=False)
        busy = await measure(bench, ways, busy=True)
        for (name, _, _), quiet, loaded in zip(ways, idle, busy, strict=True):
            print(f"{name:32}{quiet}   {loaded}", flush=True)
    disk.close()


def main() -> None:
    with (
        tempfile.TemporaryDirectory(dir=sys.argv[1]) as directory,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(table(directory))


if __name__ == "__main__":
    main()
