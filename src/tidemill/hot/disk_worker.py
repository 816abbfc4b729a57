"""Threads that sync files and write gathered bytes, for callers that watch a descriptor.

There are two of this module. `disk_worker.pyx` is compiled: its threads never take the
interpreter's lock, so a flush does not wait for a busy event loop, neither to begin nor to end.
Where there is no compiler this file runs instead, on Python's threads. Both have the same names
and pass the same tests.

A *job* is a list of files to sync, or one gathered write. The caller hands it over with a ticket,
any object, and gets the ticket back with the outcome. Until then the worker holds the ticket; the
ticket holds the open files, so no descriptor's number is used again under a thread. `fileno` is
readable while outcomes wait. The outcome is a list of failures, empty if all went well: the index
of a file or range of the job (TARGET for the target of a gathered write), and its errno, or
SHORT_READ if a file ended inside a range.

A gathered write puts these bytes at a position of the target, and syncs it:

    checksum   4 bytes, big endian: CRC-32 (zlib's) of everything behind it
    head       as given
    ranges     the bytes of each range, read from its file, one after the other

All files of a job are tried, whatever fails. Nothing is written if a range cannot be read. Jobs
begin in the order of their submission. `close` waits for all of them; in a process that was forked
off it does nothing, because the threads are not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EBADF, ENOMEM
from functools import partial
from threading import Lock
from typing import final
from zlib import crc32

__all__ = ["SHORT_READ", "TARGET", "DiskWorker", "Failure", "FileRange", "Outcome", "checksum"]

Failure = tuple[int, int]
"""The index of a file or range, and an errno or SHORT_READ."""
FileRange = tuple[int, int, int]
"""Descriptor, position, size."""
Outcome = tuple[object, list[Failure]]
"""The ticket, and what failed."""

TARGET = -1
SHORT_READ = -1
CHECKSUM_BYTES = 4


def checksum(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 as the threads compute it."""
    return crc32(data)


@final
class DiskWorker:
    """A few threads with one queue. Not for use by two threads at once."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._process = os.getpid()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = Lock()
        self._waiting = 0
        self._running = 0
        self._ended: list[Outcome] = []

    def fileno(self) -> int:
        """Readable while outcomes wait; -1 once closed."""
        return self._event

    def submit_sync(self, ticket: object, descriptors: Sequence[int]) -> None:
        """Sync these files, spread over the threads."""
        files = list(descriptors)
        if not files:
            raise ValueError("no file to sync")
        self._count_waiting()
        ways = min(self._threads, len(files))
        job = _Job(ticket, parts=ways)
        for start in range(ways):
            self._pool.submit(self._run, job, partial(_sync, files, range(start, len(files), ways)))

    def submit_gathered(
        self, ticket: object, target: int, position: int, head: bytes, ranges: Sequence[FileRange]
    ) -> None:
        """Write checksum, head and ranges at `position` of the target, and sync it."""
        parts = list(ranges)
        if position < 0 or any(start < 0 or size < 0 for _, start, size in parts):
            raise ValueError("a position or size below zero")
        self._count_waiting()
        work = partial(_gather, target, position, bytes(head), parts)
        self._pool.submit(self._run, _Job(ticket, parts=1), work)

    def take_outcomes(self) -> list[Outcome]:
        """What has ended since the last call."""
        if self._event >= 0:
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                return []
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def load(self) -> tuple[int, int]:
        """Jobs that have begun and not ended, and jobs that wait for a thread."""
        with self._lock:
            return self._running, self._waiting

    def close(self) -> None:
        """Wait for all jobs and end the threads. Outcomes can still be taken."""
        if self._event < 0 or os.getpid() != self._process:
            return
        self._pool.shutdown()
        os.close(self._event)
        self._event = -1

    def _count_waiting(self) -> None:
        if self._event < 0:
            raise ValueError("the worker is closed")
        with self._lock:
            self._waiting += 1

    def _run(self, job: _Job, work: Callable[[], list[Failure]]) -> None:
        """Runs in a thread."""
        with self._lock:
            if not job.has_begun:
                job.has_begun = True
                self._waiting -= 1
                self._running += 1
        try:
            failures = work()
        except MemoryError:
            failures = [(TARGET, ENOMEM)]
        with self._lock:
            job.failures += failures
            job.parts -= 1
            if job.parts > 0:
                return
            self._running -= 1
            self._ended.append((job.ticket, sorted(job.failures)))
        os.eventfd_write(self._event, 1)


@final
class _Job:
    def __init__(self, ticket: object, *, parts: int) -> None:
        self.ticket = ticket
        self.parts = parts
        """Parts that have not ended."""
        self.has_begun = False
        self.failures: list[Failure] = []


def _sync(descriptors: Sequence[int], part: range) -> list[Failure]:
    failures = []
    for index in part:
        try:
            _fdatasync(descriptors[index])
        except OSError as err:
            failures.append((index, err.errno or 0))
    return failures


def _fdatasync(descriptor: int) -> None:
    if descriptor < 0:  # Python calls that a ValueError
        raise OSError(EBADF, os.strerror(EBADF))
    os.fdatasync(descriptor)


def _gather(target: int, position: int, head: bytes, ranges: Sequence[FileRange]) -> list[Failure]:
    data = bytearray(CHECKSUM_BYTES) + head
    for index, (descriptor, start, size) in enumerate(ranges):
        try:
            found = _read(descriptor, start, size)
        except OSError as err:
            return [(index, err.errno or 0)]
        if len(found) < size:
            return [(index, SHORT_READ)]
        data += found
    view = memoryview(data)
    data[:CHECKSUM_BYTES] = crc32(view[CHECKSUM_BYTES:]).to_bytes(CHECKSUM_BYTES, "big")
    try:
        _write(target, view, position)
        _fdatasync(target)
    except OSError as err:
        return [(TARGET, err.errno or 0)]
    return []


def _read(descriptor: int, position: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def _write(descriptor: int, view: memoryview, position: int) -> None:
    while len(view) > 0:
        count = os.pwrite(descriptor, view, position)
        view = view[count:]
        position += count
