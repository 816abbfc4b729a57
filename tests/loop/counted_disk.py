"""A disk that writes every call into a ledger, and passes it on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, final

from tests.loop.callback_ledger import CallbackLedger, DiskUse
from tidemill.core.errors import StorageFault
from tidemill.storage.files.disk import Buffer, Disk, DiskFile, DiskSpace
from tidemill.storage.files.disk_work import DiskLoad, DiskWork

T = TypeVar("T")


@final
class CountedFile:
    """One open file."""

    def __init__(self, file: DiskFile, ledger: CallbackLedger) -> None:
        self._file = file
        self._ledger = ledger

    @property
    def path(self) -> str:
        return self._file.path

    def pread(self, size: int, position: int) -> bytes:
        data = self._file.pread(size, position)
        self._ledger.note(DiskUse.READ)
        self._ledger.note(DiskUse.READ_BYTES, len(data))
        return data

    def pwrite(self, chunks: Sequence[Buffer], position: int) -> int:
        self._ledger.note(DiskUse.WRITE)
        self._ledger.note(DiskUse.WRITE_BYTES, sum(map(len, chunks)))
        return self._file.pwrite(chunks, position)

    def size(self) -> int:
        self._ledger.note(DiskUse.LOOK)
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._ledger.note(DiskUse.CUT)
        self._file.truncate(size)

    def sync(self) -> None:
        self._ledger.note(DiskUse.SYNC)
        self._file.sync()

    def try_resident_view(self, position: int, size: int) -> memoryview | None:
        return self._file.try_resident_view(position, size)

    def close(self) -> None:
        self._file.close()


@final
class CountedDisk:
    """`Disk` over another one."""

    def __init__(self, disk: Disk, ledger: CallbackLedger) -> None:
        self._disk = disk
        self._ledger = ledger

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        self._ledger.note(DiskUse.MAKE if create else DiskUse.OPEN)
        return CountedFile(self._disk.open(path, create=create), self._ledger)

    def exists(self, path: str) -> bool:
        self._ledger.note(DiskUse.LOOK)
        return self._disk.exists(path)

    def size(self, path: str) -> int:
        self._ledger.note(DiskUse.LOOK)
        return self._disk.size(path)

    def changed_ms(self, path: str) -> int:
        self._ledger.note(DiskUse.LOOK)
        return self._disk.changed_ms(path)

    def list_names(self, path: str) -> list[str]:
        self._ledger.note(DiskUse.LIST)
        return self._disk.list_names(path)

    def make_directories(self, path: str) -> None:
        self._ledger.note(DiskUse.MAKE)
        self._disk.make_directories(path)

    def read_file(self, path: str) -> bytes:
        data = self._disk.read_file(path)
        self._ledger.note(DiskUse.READ)
        self._ledger.note(DiskUse.READ_BYTES, len(data))
        return data

    def write_file_atomically(self, path: str, data: Buffer) -> None:
        self._ledger.note(DiskUse.SYNC, 2)
        self._ledger.note(DiskUse.MAKE)
        self._ledger.note(DiskUse.NAME)
        self._ledger.note(DiskUse.WRITE)
        self._ledger.note(DiskUse.WRITE_BYTES, len(data))
        self._disk.write_file_atomically(path, data)

    def rename(self, source: str, target: str) -> None:
        self._ledger.note(DiskUse.NAME)
        self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        self._ledger.note(DiskUse.NAME)
        self._disk.unlink(path)

    def remove_directory(self, path: str) -> None:
        self._ledger.note(DiskUse.NAME)
        self._disk.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self._ledger.note(DiskUse.SYNC)
        self._disk.sync_directory(path)

    def space(self, path: str) -> DiskSpace:
        self._ledger.note(DiskUse.LOOK)
        return self._disk.space(path)

    def lock(self, path: str) -> DiskFile:
        self._ledger.note(DiskUse.OPEN)
        return CountedFile(self._disk.lock(path), self._ledger)

    async def run(self, operation: Callable[[], T], work: DiskWork = DiskWork.READ) -> T:
        def in_thread() -> T:
            with self._ledger.in_thread():
                return operation()

        return await self._disk.run(in_thread, work)

    async def sync_files(
        self, files: Sequence[DiskFile], work: DiskWork = DiskWork.FLUSH
    ) -> list[StorageFault | None]:
        return await self._disk.sync_files([_passed_on(file) for file in files], work)

    async def write_gathered(
        self,
        target: DiskFile,
        position: int,
        head: Buffer,
        ranges: Sequence[tuple[DiskFile, int, int]],
        work: DiskWork = DiskWork.FLUSH,
    ) -> None:
        own = [(_passed_on(file), start, size) for file, start, size in ranges]
        await self._disk.write_gathered(_passed_on(target), position, head, own, work)

    def load_of(self, work: DiskWork) -> DiskLoad:
        return self._disk.load_of(work)


def _passed_on(file: DiskFile) -> DiskFile:
    """Its calls are made by a thread: none of them is the event loop's."""
    assert isinstance(file, CountedFile)
    return file._file
