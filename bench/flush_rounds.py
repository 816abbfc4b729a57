"""The cost of one flush round: fdatasync per file, in one or more threads, against one syncfs.

    python -m bench.flush_rounds DIRECTORY        under a minute; the machine should be quiet

Each round appends 4,000 bytes to every file and then makes them durable, like a flush round of that
many dirty partitions. In the second table another program on the same file system writes 60 MB/s
and never syncs; syncfs must write its data too. See docs/adr/0003-flush-rounds.md.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

WRITE_BYTES = 4_000
THREADS_MAX = 8
SYNC_FILE_RANGE_WRITE = 2
PLANS = {"fdatasync": 1, "fdatasync/2": 2, "fdatasync/4": 4, "fdatasync/8": 8}

_libc = ctypes.CDLL(None, use_errno=True)

_NEIGHBOUR = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
block, position = os.urandom(1 << 20), 0
while True:
    for _ in range(6):
        os.pwrite(file, block, position % (1 << 30))
        position += 1 << 20
    time.sleep(0.1)
"""


class Files:
    """The dirty files of one round."""

    def __init__(self, directory: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX)
        self._directory = os.open(directory, os.O_RDONLY)
        flags = os.O_RDWR | os.O_CREAT
        self._files = [os.open(f"{directory}/{number}", flags) for number in range(count)]
        self._position = 0

    def append(self, data: bytes) -> None:
        for file in self._files:
            os.pwrite(file, data, self._position)
        self._position += len(data)

    def sync_each(self, threads: int) -> None:
        shares = [self._files[start::threads] for start in range(threads)]
        list(self._pool.map(_sync, shares))

    def start_writeback_then_sync(self, threads: int) -> None:
        zero = ctypes.c_int64(0)
        for file in self._files:
            _libc.sync_file_range(file, zero, zero, SYNC_FILE_RANGE_WRITE)
        self.sync_each(threads)

    def sync_file_system(self) -> None:
        self._pool.submit(_libc.syncfs, self._directory).result()

    def close(self) -> None:
        self._pool.shutdown()
        for file in [*self._files, self._directory]:
            os.close(file)


def _sync(files: list[int]) -> None:
    for file in files:
        os.fdatasync(file)


def measure(count: int, name: str, round_of: Callable[[Files], None], seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as directory:
        files = Files(directory, count)
        data = os.urandom(WRITE_BYTES)
        costs_ms: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(costs_ms) < 3:
            files.append(data)
            started = time.perf_counter()
            round_of(files)
            costs_ms.append((time.perf_counter() - started) * 1000)
        files.close()
    costs_ms.sort()
    p50, p99 = costs_ms[len(costs_ms) // 2], costs_ms[int(len(costs_ms) * 0.99)]
    print(f"{count:6} {name:18} p50 {p50:8.2f}  p99 {p99:8.2f}  max {costs_ms[-1]:8.2f} ms")


def table(counts: tuple[int, ...], seconds: float) -> None:
    for count in counts:
        for name, threads in PLANS.items():
            measure(count, name, partial(Files.sync_each, threads=threads), seconds)
        measure(count, "range, fdatasync/4", lambda f: f.start_writeback_then_sync(4), seconds)
        measure(count, "syncfs", Files.sync_file_system, seconds)


@contextmanager
def neighbour() -> Iterator[None]:
    path = f"{sys.argv[1]}/neighbour"
    process = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR, path])
    try:
        yield
    finally:
        process.kill()
        process.wait()
        os.unlink(path)


if __name__ == "__main__":
    table((1, 4, 64, 1_000), 1.0)
    print("with a neighbour that writes 60 MB/s")
    with neighbour():
        table((4, 64), 1.0)
