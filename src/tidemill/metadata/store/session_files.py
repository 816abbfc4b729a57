"""The sessions of the processes of one host, each a file that its process holds locked.

    sessions/<id>         a page: stamp, then who holds it; under `flock` while the process runs
    sessions/<id>.nudge   a FIFO: a byte in it means that the store has changed

    page    0  8 bytes   stamp: CLOCK_MONOTONIC in nanoseconds, native order
            8  2 bytes   length of the text
           10  text      JSON: pid, pid namespace, boot id

The kernel frees the lock when the process ends, in whatever way, and never before. So a session
whose lock is free belongs to a process that runs no more: on one host the lease is the process
itself, without a clock. A process that hangs keeps its lock; `kill` ends it. The kernel gives a pid
to another process only after the lock is free, so a pidfd that was opened while the lock was held
is that process's own.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import select
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from tidemill.core.errors import UserError

__all__ = [
    "Holder",
    "SessionFile",
    "check_kernel",
    "is_ended",
    "kill",
    "nudge",
    "read_page",
    "remove",
    "session_ids",
    "this_process",
]

_PAGE_BYTES = mmap.PAGESIZE
_STAMP = struct.Struct("=Q")
_LENGTH = struct.Struct("=H")
_LENGTH_AT = _STAMP.size
_TEXT_AT = _LENGTH_AT + _LENGTH.size
_DRAIN_BYTES = 4096
_NS = 1_000_000_000


@final
@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a session."""

    pid: int
    namespace: str
    """Of process ids: the same pid is another process in another one."""
    boot_id: str


def this_process() -> Holder:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot_id = file.read().strip()
    return Holder(os.getpid(), os.readlink("/proc/self/ns/pid"), boot_id)


@final
class SessionFile:
    """The session of this process. Made and closed in the worker thread of the store."""

    def __init__(self, directory: str, session_id: int, holder: Holder, *, now: float) -> None:
        self.session_id = session_id
        self._path = _path(directory, session_id)
        self._page: mmap.mmap | None = None
        self._fifo: int | None = None
        self._wakeup: int | None = None
        self._poll = select.poll()
        self._descriptor = os.open(
            self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            self._fill(holder, now)
            self._fifo = _made_fifo(_nudge_path(directory, session_id))
            self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except BaseException:
            self.close()
            raise
        for descriptor in (self._fifo, self._wakeup):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def _fill(self, holder: Holder, now: float) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Written, not only made longer: a store to a page without a block on a full disk is SIGBUS.
        os.pwrite(self._descriptor, bytes(_PAGE_BYTES), 0)
        self._page = mmap.mmap(self._descriptor, _PAGE_BYTES)
        self.stamp(now)
        text = json.dumps([holder.pid, holder.namespace, holder.boot_id]).encode()
        self._page[_TEXT_AT : _TEXT_AT + len(text)] = text
        _LENGTH.pack_into(self._page, _LENGTH_AT, len(text))

    def stamp(self, now: float) -> None:
        """This process is alive: a store to memory, which no disk can delay."""
        assert self._page is not None
        _STAMP.pack_into(self._page, 0, int(now * _NS))

    def wait(self, timeout_s: float) -> None:
        """Until a nudge or a wake-up comes, or the time has passed."""
        for descriptor, _ in self._poll.poll(timeout_s * 1000):
            with suppress(BlockingIOError):
                os.read(descriptor, _DRAIN_BYTES)

    def wake(self) -> None:
        """End the wait; from any thread."""
        assert self._wakeup is not None
        os.eventfd_write(self._wakeup, 1)

    @property
    def is_linked(self) -> bool:
        """Whether peers can still find the file: somebody may have removed it by hand."""
        return os.fstat(self._descriptor).st_nlink > 0

    def close(self) -> None:
        """Free the lock; the row in the store is gone by then."""
        for path in (self._path, f"{self._path}.nudge"):
            with suppress(FileNotFoundError):
                os.unlink(path)
        if self._page is not None:
            self._page.close()
        for descriptor in (self._fifo, self._wakeup, self._descriptor):
            if descriptor is not None:
                os.close(descriptor)


def _made_fifo(path: str) -> int | None:
    """None where the file system has no FIFOs: looking every 50 ms is enough."""
    try:
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Open for writing too, so that it never ends when the last writer goes.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}:
            return None
        raise


# --- sessions of other processes ---------------------------------------------------------------


def session_ids(directory: str) -> list[int]:
    """The ids of all session files."""
    return sorted(int(name) for name in os.listdir(directory) if name.isdecimal())


def is_ended(directory: str, session_id: int) -> bool:
    """Whether the session's lock is free, or its file gone; call it inside a write transaction."""
    try:
        descriptor = os.open(_path(directory, session_id), os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def read_page(directory: str, session_id: int) -> tuple[float, Holder] | None:
    """A session's stamp and holder; None if the file is gone or not filled yet."""
    try:
        descriptor = os.open(_path(directory, session_id), os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        page = os.pread(descriptor, _PAGE_BYTES, 0)
    finally:
        os.close(descriptor)
    try:
        (length,) = _LENGTH.unpack_from(page, _LENGTH_AT)
        pid, namespace, boot_id = json.loads(page[_TEXT_AT : _TEXT_AT + length])
        return _STAMP.unpack_from(page)[0] / _NS, Holder(int(pid), str(namespace), str(boot_id))
    except (struct.error, ValueError, TypeError, OverflowError, RecursionError):
        return None


def kill(directory: str, session_id: int, holder: Holder) -> None:
    """SIGKILL to a process that hangs; OSError if that is not allowed."""
    try:
        process = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return
    try:
        if not is_ended(directory, session_id):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    finally:
        os.close(process)


def nudge(directory: str, session_id: int) -> None:
    """Tell a peer that the store has changed; a lost byte is made up for by its looks."""
    try:
        fifo = os.open(_nudge_path(directory, session_id), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(fifo, b"!")
    except OSError:
        pass
    finally:
        os.close(fifo)


def remove(directory: str, session_id: int) -> None:
    """Remove the files of a session that has ended."""
    for path in (_path(directory, session_id), _nudge_path(directory, session_id)):
        with suppress(FileNotFoundError):
            os.unlink(path)


def check_kernel(directory: str, session_id: int, own: Holder) -> None:
    """UserError if a session is held by another kernel: locks do not reach between the two."""
    page = read_page(directory, session_id)
    if page is not None and page[1].boot_id != own.boot_id:
        raise UserError(
            f"{directory} is in use on another machine, or in another virtual machine: "
            "brokers of several hosts need ZooKeeper"
        )


def _path(directory: str, session_id: int) -> str:
    return f"{directory}/{session_id}"


def _nudge_path(directory: str, session_id: int) -> str:
    return f"{directory}/{session_id}.nudge"
