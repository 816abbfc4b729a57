"""The Disk seam: all operating-system calls on files are made here.

Storage is synchronous. Its callers decide what may run on the event loop (a write into the page
cache, a read of resident pages) and what goes into a thread: `sync_files` and `write_gathered` are
for what acknowledgements wait for, `run` is for the rest (cold reads, scans). Faults come out as
`StorageFault`, a full disk as `DiskFull`, never as `OSError`.

What a crash may do, and what a simulated disk must model:
- bytes written but not synced may be kept, lost or torn, each page (4 KiB) independently;
- a created, renamed or unlinked name is durable only after its directory was synced;
- after a failed sync the pages count as clean: a second sync proves nothing, so none is tried.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast, final

from tidemill.core.errors import StorageFault, UserError
from tidemill.storage.files.disk_jobs import DiskJobs
from tidemill.storage.files.disk_work import DiskLoad, DiskThreads, DiskWork
from tidemill.storage.files.os_file import Buffer, OsFile, fault_of, faults_of

__all__ = ["Buffer", "Disk", "DiskFile", "DiskSpace", "OsDisk"]

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The size of a volume."""

    total_bytes: int
    usable_bytes: int
    """What this process may still use; part of the free space may be reserved."""


class DiskFile(Protocol):
    """One open file. Positions are absolute; there is no cursor."""

    @property
    def path(self) -> str: ...

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def pwrite(self, chunks: Sequence[Buffer], position: int) -> int:
        """Write all chunks in order from `position` on; all of them or an error."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cut or extend. Bytes that a view was given of are never cut (SIGBUS)."""
        ...

    def sync(self) -> None:
        """Make the file's bytes durable (fdatasync). An error is final for this file."""
        ...

    def try_resident_view(self, position: int, size: int) -> memoryview | None:
        """A read-only view of these bytes without a copy, or None if that would not be safe.

        Safe means: mapped, wholly inside the file, and in memory now (a page fault on the event
        loop stalls every connection). The view keeps its map alive; it is never closed.
        """
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """The part of a file system that storage needs. Paths are absolute or relative strings."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reading and writing; with `create` the file must not exist yet."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def changed_ms(self, path: str) -> int:
        """When a file's content or name last changed, in wall-clock time."""
        ...

    def list_names(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_directories(self, path: str) -> None: ...

    def read_file(self, path: str) -> bytes:
        """The whole content of a small file."""
        ...

    def write_file_atomically(self, path: str, data: Buffer) -> None:
        """Temporary file, sync, rename, directory sync: the old content or the new, never half."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; no error if it does not exist."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in this directory durable."""
        ...

    def space(self, path: str) -> DiskSpace:
        """The size of this path's volume, and how much of it may still be used."""
        ...

    def lock(self, path: str) -> DiskFile:
        """Take an exclusive lock on a file, or raise UserError naming the process that holds it."""
        ...

    async def run(self, operation: Callable[[], T], work: DiskWork = DiskWork.READ) -> T:
        """Run a slow operation off the event loop: the only way into a thread.

        `work` decides in which threads. DiskBusy: too many reads wait, and this one did not run.
        """
        ...

    async def sync_files(
        self, files: Sequence[DiskFile], work: DiskWork = DiskWork.FLUSH
    ) -> list[StorageFault | None]:
        """Sync these files off the event loop. One outcome per file, in order; all are tried."""
        ...

    async def write_gathered(
        self,
        target: DiskFile,
        position: int,
        head: Buffer,
        ranges: Sequence[tuple[DiskFile, int, int]],
        work: DiskWork = DiskWork.FLUSH,
    ) -> None:
        """Write ranges (file, position, size) behind `head` into `target` at once, and sync it.

        The layout is in `gathered_write.py`, with the same for the calling thread. StorageFault: a
        range could not be read whole, and nothing was written; or the write or the sync failed.
        """
        ...

    def load_of(self, work: DiskWork) -> DiskLoad:
        """How busy the threads of this kind of work are."""
        ...


_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


@final
class OsDisk:
    """The machine's file system. Directories 0700, files 0600, symbolic links are not followed."""

    def __init__(self) -> None:
        self._threads = {work: DiskThreads(work) for work in DiskWork}
        self._jobs = {work: DiskJobs(work) for work in DiskWork}

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        return self._open(path, _OPEN_FLAGS | (os.O_CREAT | os.O_EXCL if create else 0))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        with faults_of(path):
            return os.stat(path, follow_symlinks=False).st_size

    def changed_ms(self, path: str) -> int:
        with faults_of(path):
            return os.stat(path, follow_symlinks=False).st_ctime_ns // 1_000_000

    def list_names(self, path: str) -> list[str]:
        with faults_of(path):
            return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        with faults_of(path):
            os.makedirs(path, mode=_DIRECTORY_MODE, exist_ok=True)

    def read_file(self, path: str) -> bytes:
        file = self._open(path, _OPEN_FLAGS)
        return file.pread(file.size(), 0)

    def write_file_atomically(self, path: str, data: Buffer) -> None:
        temporary = f"{path}.tmp"
        self.unlink(temporary)
        file = self.open(temporary, create=True)
        try:
            file.pwrite([data], 0)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def rename(self, source: str, target: str) -> None:
        with faults_of(source):
            os.rename(source, target)

    def unlink(self, path: str) -> None:
        with faults_of(path), suppress(FileNotFoundError):
            os.unlink(path)

    def remove_directory(self, path: str) -> None:
        with faults_of(path), suppress(FileNotFoundError):
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        with faults_of(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def space(self, path: str) -> DiskSpace:
        with faults_of(path):
            found = os.statvfs(path)
        return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def lock(self, path: str) -> DiskFile:
        file = self._open(path, _OPEN_FLAGS | os.O_CREAT)
        try:
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.pread(32, 0).decode("ascii", "replace").strip()
            raise UserError(f"{path} is locked by process {holder or 'unknown'}") from None
        except OSError as err:
            raise fault_of(err, path) from err
        file.truncate(0)
        file.pwrite([b"%d\n" % os.getpid()], 0)
        return file

    async def run(self, operation: Callable[[], T], work: DiskWork = DiskWork.READ) -> T:
        return await self._threads[work].run(operation)

    async def sync_files(
        self, files: Sequence[DiskFile], work: DiskWork = DiskWork.FLUSH
    ) -> list[StorageFault | None]:
        return await self._jobs[work].sync(cast("Sequence[OsFile]", files))

    async def write_gathered(
        self,
        target: DiskFile,
        position: int,
        head: Buffer,
        ranges: Sequence[tuple[DiskFile, int, int]],
        work: DiskWork = DiskWork.FLUSH,
    ) -> None:
        own = cast("Sequence[tuple[OsFile, int, int]]", ranges)
        await self._jobs[work].write_gathered(cast("OsFile", target), position, head, own)

    def load_of(self, work: DiskWork) -> DiskLoad:
        return self._threads[work].load + self._jobs[work].load

    def close(self) -> None:
        """Wait for running operations and end the threads."""
        for work in DiskWork:
            self._threads[work].close()
            self._jobs[work].close()

    def _open(self, path: str, flags: int) -> OsFile:
        with faults_of(path):
            return OsFile(path, os.open(path, flags, _FILE_MODE))
