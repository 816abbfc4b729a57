"""One open file of the machine: its descriptor, and the map that readers get views of.

The calls behind `DiskFile` (`disk.py`). A fault comes out as `StorageFault`, a full disk as
`DiskFull`, never as `OSError`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

from tidemill.core.errors import DiskFull, StorageFault
from tidemill.core.limits import REMAP_GROWTH_BYTES

__all__ = ["Buffer", "OsFile", "fault_of", "faults_of"]

Buffer = bytes | bytearray | memoryview

_CHUNKS_PER_CALL_MAX = 1024  # IOV_MAX of Linux
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def fault_of(err: OSError, path: str) -> StorageFault:
    kind = DiskFull if err.errno in _FULL else StorageFault
    return kind(f"{path}: {err.strerror or err}")


@contextmanager
def faults_of(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise fault_of(err, path) from err


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
class OsFile:
    """A file descriptor that stays open as long as anything holds this object.

    A cache may forget a file while a thread still syncs or reads it. Closing with the last
    reference keeps the descriptor's number from being reused under that thread; an explicit
    `close` could make it sync an unrelated file and call that durable.
    """

    __slots__ = ("_map", "_path", "_size_at_miss", "descriptor")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self.descriptor = descriptor
        """For the threads of `DiskJobs`, which hold this object as long as they use the number."""
        self._map: _Map | None = None
        self._size_at_miss = -1

    @property
    def path(self) -> str:
        return self._path

    def pread(self, size: int, position: int) -> bytes:
        try:
            data = os.pread(self.descriptor, size, position)
            while len(data) < size:
                more = os.pread(self.descriptor, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as err:
            raise fault_of(err, self._path) from err
        return data

    def pwrite(self, chunks: Sequence[Buffer], position: int) -> int:
        try:
            if len(chunks) == 1:
                size = len(chunks[0])
                written = os.pwrite(self.descriptor, chunks[0], position)
            else:
                size = sum(map(len, chunks))
                written = os.pwritev(self.descriptor, chunks[:_CHUNKS_PER_CALL_MAX], position)
            if written < size:
                self._write_rest(chunks, position, written)
        except OSError as err:
            raise fault_of(err, self._path) from err
        return size

    def size(self) -> int:
        with faults_of(self._path):
            return os.fstat(self.descriptor).st_size

    def truncate(self, size: int) -> None:
        with faults_of(self._path):
            os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        with faults_of(self._path):
            os.fdatasync(self.descriptor)

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
        descriptor, self.descriptor = self.descriptor, -1
        self._map = None
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def _try_remap(self, end: int) -> _Map | None:
        """Map the file again once it has grown enough, or has stopped growing."""
        size = self.size()
        mapped_bytes = self._map.size if self._map is not None else 0
        at_rest = size == self._size_at_miss
        self._size_at_miss = size
        if end > size or not (at_rest or size - mapped_bytes >= REMAP_GROWTH_BYTES):
            return None
        with faults_of(self._path):
            self._map = _Map(self.descriptor, size)
        return self._map

    def _write_rest(self, chunks: Sequence[Buffer], position: int, written: int) -> None:
        """After a short write: write the rest, chunk by chunk."""
        skip = written
        for chunk in chunks:
            view = memoryview(chunk)[skip:]
            skip = max(0, skip - len(chunk))
            while len(view) > 0:
                count = os.pwrite(self.descriptor, view, position + written)
                written += count
                view = view[count:]
