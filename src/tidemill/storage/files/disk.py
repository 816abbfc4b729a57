"""The Disk seam: all operating-system calls on files are made here.

Storage is synchronous. Its callers decide what may run on the event loop (a write into the page
cache, a read of resident pages) and what goes through `Disk.run` into a thread (fsync, cold reads,
scans). Faults come out as `StorageFault`, a full disk as `DiskFull`, never as `OSError`.

What a crash may do, and what a simulated disk must model:
- bytes written but not synced may be kept, lost or torn, each page (4 KiB) independently;
- a created, renamed or unlinked name is durable only after its directory was synced;
- after a failed sync the pages count as clean: a second sync proves nothing, so none is tried.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar, final

from tidemill.core.errors import DiskFull, StorageFault, UserError
from tidemill.core.limits import REMAP_GROWTH_BYTES
from tidemill.storage.files.disk_work import DiskLoad, DiskThreads, DiskWork

__all__ = ["Buffer", "Disk", "DiskFile", "DiskSpace", "OsDisk"]

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


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

    def load_of(self, work: DiskWork) -> DiskLoad:
        """How busy the threads of this kind of work are."""
        ...


_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_CHUNKS_PER_CALL_MAX = 1024  # IOV_MAX of Linux
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def _fault(err: OSError, path: str) -> StorageFault:
    kind = DiskFull if err.errno in _FULL else StorageFault
    return kind(f"{path}: {err.strerror or err}")


@contextmanager
def _faults(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise _fault(err, path) from err


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer, for the address behind a read-only map (`from_buffer` refuses those)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_mincore = ctypes.CDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)


def _address_of(mapped: mmap.mmap) -> int:
    buffer = _PyBuffer()
    _get_buffer(mapped, ctypes.byref(buffer), 0)
    address = int(buffer.buf or 0)
    _release_buffer(ctypes.byref(buffer))
    return address


@final
class _Map:
    """A file's first `size` bytes, mapped. Dropping the last reference, views included, unmaps."""

    __slots__ = ("_address", "_view", "size")

    def __init__(self, descriptor: int, size: int) -> None:
        mapped = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self.size = size
        self._view = memoryview(mapped)
        self._address = _address_of(mapped)

    def try_view(self, position: int, end: int) -> memoryview | None:
        """The bytes, if every page of them is in memory (19 us per MB)."""
        first = position - position % mmap.PAGESIZE
        pages = ctypes.create_string_buffer((end - first + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
        if _mincore(self._address + first, end - first, pages) != 0 or b"\0" in pages.raw:
            return None
        return self._view[position:end]


@final
class _OsFile:
    """A file descriptor that stays open as long as anything holds this object.

    A cache may forget a file while a thread still syncs or reads it. Closing with the last
    reference keeps the descriptor's number from being reused under that thread; an explicit
    `close` could make it sync an unrelated file and call that durable.
    """

    __slots__ = ("_descriptor", "_map", "_path", "_size_at_miss")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._map: _Map | None = None
        self._size_at_miss = -1

    @property
    def path(self) -> str:
        return self._path

    def pread(self, size: int, position: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, position)
            while len(data) < size:
                more = os.pread(self._descriptor, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as err:
            raise _fault(err, self._path) from err
        return data

    def pwrite(self, chunks: Sequence[Buffer], position: int) -> int:
        try:
            if len(chunks) == 1:
                size = len(chunks[0])
                written = os.pwrite(self._descriptor, chunks[0], position)
            else:
                size = sum(map(len, chunks))
                written = os.pwritev(self._descriptor, chunks[:_CHUNKS_PER_CALL_MAX], position)
            if written < size:
                self._write_rest(chunks, position, written)
        except OSError as err:
            raise _fault(err, self._path) from err
        return size

    def size(self) -> int:
        with _faults(self._path):
            return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        with _faults(self._path):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        with _faults(self._path):
            os.fdatasync(self._descriptor)

    def try_resident_view(self, position: int, size: int) -> memoryview | None:
        end = position + size
        if position < 0 or size <= 0:
            return None
        mapped = self._map
        if mapped is None or end > mapped.size:
            mapped = self._try_remap(end)
            if mapped is None:
                return None
        return mapped.try_view(position, end)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        self._map = None
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _try_remap(self, end: int) -> _Map | None:
        """Map the file again once it has grown enough, or has stopped growing."""
        size = self.size()
        mapped_bytes = self._map.size if self._map is not None else 0
        at_rest = size == self._size_at_miss
        self._size_at_miss = size
        if end > size or not (at_rest or size - mapped_bytes >= REMAP_GROWTH_BYTES):
            return None
        with _faults(self._path):
            self._map = _Map(self._descriptor, size)
        return self._map

    def _write_rest(self, chunks: Sequence[Buffer], position: int, written: int) -> None:
        """After a short write: write the rest, chunk by chunk."""
        skip = written
        for chunk in chunks:
            view = memoryview(chunk)[skip:]
            skip = max(0, skip - len(chunk))
            while len(view) > 0:
                count = os.pwrite(self._descriptor, view, position + written)
                written += count
                view = view[count:]


@final
class OsDisk:
    """The machine's file system. Directories 0700, files 0600, symbolic links are not followed."""

    def __init__(self) -> None:
        self._threads = {work: DiskThreads(work) for work in DiskWork}

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        return self._open(path, _OPEN_FLAGS | (os.O_CREAT | os.O_EXCL if create else 0))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        with _faults(path):
            return os.stat(path, follow_symlinks=False).st_size

    def changed_ms(self, path: str) -> int:
        with _faults(path):
            return os.stat(path, follow_symlinks=False).st_ctime_ns // 1_000_000

    def list_names(self, path: str) -> list[str]:
        with _faults(path):
            return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        with _faults(path):
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
        with _faults(source):
            os.rename(source, target)

    def unlink(self, path: str) -> None:
        with _faults(path), suppress(FileNotFoundError):
            os.unlink(path)

    def remove_directory(self, path: str) -> None:
        with _faults(path), suppress(FileNotFoundError):
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        with _faults(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def space(self, path: str) -> DiskSpace:
        with _faults(path):
            found = os.statvfs(path)
        return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def lock(self, path: str) -> DiskFile:
        file = self._open(path, _OPEN_FLAGS | os.O_CREAT)
        try:
            fcntl.flock(file._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.pread(32, 0).decode("ascii", "replace").strip()
            raise UserError(f"{path} is locked by process {holder or 'unknown'}") from None
        except OSError as err:
            raise _fault(err, path) from err
        file.truncate(0)
        file.pwrite([b"%d\n" % os.getpid()], 0)
        return file

    async def run(self, operation: Callable[[], T], work: DiskWork = DiskWork.READ) -> T:
        return await self._threads[work].run(operation)

    def load_of(self, work: DiskWork) -> DiskLoad:
        return self._threads[work].load

    def close(self) -> None:
        """Wait for running operations and end the threads."""
        for threads in self._threads.values():
            threads.close()

    def _open(self, path: str, flags: int) -> _OsFile:
        with _faults(path):
            return _OsFile(path, os.open(path, flags, _FILE_MODE))
