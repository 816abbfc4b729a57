"""One open file of the simulated disk: what a process sees of it, and what it may break."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from tidemill.core.errors import DiskFull, StorageFault
from tidemill.storage.files.disk import Buffer
from tidemill.testing.sim.media import MediaFile

if TYPE_CHECKING:
    from tidemill.testing.sim.disk import SimDisk

__all__ = ["SimFile"]


@final
class SimFile:
    """An open file of one process."""

    def __init__(self, disk: SimDisk, path: str, file: MediaFile) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def pread(self, size: int, position: int) -> bytes:
        self._check_open()
        self._disk.maybe_fail("pread", self._path)
        return bytes(self._file.current[position : position + size])

    def pwrite(self, chunks: Sequence[Buffer], position: int) -> int:
        self._check_open()
        self._disk.before_change("pwrite", self._path)
        data = b"".join(chunks)
        growth = max(0, position + len(data) - len(self._file.current))
        missing = growth - self._disk.take_space(growth)
        self._file.write(data[: len(data) - missing], position)
        self._disk.note_changed(self._file)
        if missing:
            raise DiskFull(f"{self._path}: no space left (simulated)")
        return len(data)

    def size(self) -> int:
        self._check_open()
        return len(self._file.current)

    def truncate(self, size: int) -> None:
        self._check_open()
        self._disk.check_cut(self._file, size, self._path)
        self._disk.before_change("truncate", self._path)
        self._disk.take_space(size - len(self._file.current))
        self._file.resize(size)
        self._disk.note_changed(self._file)

    def sync(self) -> None:
        self._check_open()
        try:
            self._disk.before_change("sync", self._path)
        except StorageFault:
            self._file.forget_pending()
            raise
        self._file.sync()

    def try_resident_view(self, position: int, size: int) -> memoryview | None:
        self._check_open()
        is_inside = position >= 0 and 0 < size <= len(self._file.current) - position
        if not is_inside or not self._disk.is_resident:
            return None
        self._disk.note_mapped(self._file)
        return memoryview(bytes(self._file.current[position : position + size]))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._disk.unlock(self)

    def belongs_to(self, disk: object) -> bool:
        return self._disk is disk

    def _check_open(self) -> None:
        self._disk.check_alive()
        if self._closed:
            raise StorageFault(f"{self._path}: file is closed")
