"""A disk in memory that forgets what was not synced.

Every file has two images: what a reader sees now, and what survives a power loss. A write changes
the first and marks 4 KiB pages as pending; `sync` copies the pending pages to the second. A
directory has two sets of names in the same way; `sync_directory` copies names over.

`crash` builds what a machine would find after a power loss: each pending page is kept, lost or torn
(mixed sector by sector) independently, the file's size is somewhere between the durable and the
present one, and each pending change of a directory happened or not, independently. `restart` is the
milder end of a process: the page cache stays. Both kill this object: it, and every file opened
through it, raises `SimulatedCrash` from then on.

Only calls that change something are counted, because a crash before a read gives the same state as
a crash before the next change.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

from tidemill.core.errors import StorageFault, UserError, invariant
from tidemill.core.rng import Rng
from tidemill.storage.files.disk import Buffer, DiskFile, DiskSpace
from tidemill.storage.files.disk_work import DiskLoad, DiskWork
from tidemill.storage.files.gathered_write import write_gathered_now
from tidemill.testing.sim.disk_file import SimFile
from tidemill.testing.sim.media import (
    Fate,
    Media,
    MediaDirectory,
    MediaFile,
    NameChange,
    Node,
    normal_path,
    path_parts,
    used_bytes,
)

__all__ = ["SimDisk", "SimulatedCrash"]

T = TypeVar("T")

BOUNDLESS_BYTES = 1 << 60
"""The size that a disk without a capacity reports."""


CallHook = Callable[["SimDisk", str, str], None]
"""Called with the disk, the call and the path just before something changes."""


class SimulatedCrash(BaseException):
    """The process is gone. Not an `Exception`: no handler of the dead process may catch it."""


@final
@dataclass(slots=True)
class _Fault:
    call: str
    path_part: str
    times: int


@final
class SimDisk:
    """`Disk` in memory."""

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        is_resident: bool = True,
        run_delay_s: Callable[[], float] | None = None,
        on_call: CallHook | None = None,
        wall_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`wall_ms` is the time that files are dated with."""
        self._media = Media(capacity_bytes=capacity_bytes, wall_ms=wall_ms)
        self._run_delay_s = run_delay_s
        self.is_resident = is_resident
        """Whether files give out views; if not, every read may wait for the disk."""
        self._dead = False
        self._faults: list[_Fault] = []
        self._mapped: dict[MediaFile, int] = {}
        self.calls = 0
        """Number of changing calls so far."""
        self.on_call = on_call
        """An exception that it raises stops the call."""

    # --- the machine: crashes and faults ----------------------------------------------------------

    def stop_at_call(self, number: int) -> None:
        """Let the process die just before its changing call with this number (from 1 on)."""

        def stop(disk: SimDisk, _call: str, _path: str) -> None:
            if disk.calls >= number:
                raise SimulatedCrash

        self.on_call = stop

    def crash(self, rng: Rng) -> SimDisk:
        """Power loss: this process is dead; the returned disk is what the next one finds."""
        image = self.crash_image(rng)
        self._die()
        return image

    def crash_image(self, rng: Rng) -> SimDisk:
        """What `crash` would return, while this process lives on: one run, many crashes."""
        successor = SimDisk(is_resident=self.is_resident, run_delay_s=self._run_delay_s)
        root = self._media.root.after_crash(Fate(rng))
        media = self._media
        successor._media = Media(root, media.capacity_bytes, used_bytes(root), media.wall_ms)
        return successor

    def restart(self) -> SimDisk:
        """The process dies, the machine lives: nothing that was written is lost."""
        successor = self.beside()
        successor.on_call = self.on_call
        self._die()
        return successor

    def beside(self) -> SimDisk:
        """A second process on the same machine."""
        neighbour = SimDisk(is_resident=self.is_resident, run_delay_s=self._run_delay_s)
        neighbour._media = self._media
        return neighbour

    def fail(self, call: str, path_part: str = "", *, times: int = 1) -> None:
        """Let the next calls of this name ("pwrite", "sync", ...) on such a path fail with EIO."""
        self._faults.append(_Fault(call, path_part, times))

    def set_capacity(self, capacity_bytes: int | None) -> None:
        self._media.capacity_bytes = capacity_bytes

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Bit rot: the medium changes without a report."""
        file = self._media.file(path)
        for image in (file.current, file.durable):
            if position < len(image):
                image[position] ^= 1 << bit

    def overwrite(self, path: str, position: int, data: Buffer) -> None:
        """Change bytes on the medium unnoticed (a misdirected write, an old sector)."""
        file = self._media.file(path)
        file.write(data, position)
        file.sync()

    def _die(self) -> None:
        self._dead = True
        locks = self._media.locks
        for path in [path for path, file in locks.items() if file.belongs_to(self)]:
            del locks[path]

    # --- Disk -------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        self.check_alive()
        path = normal_path(path)
        if create:
            return SimFile(self, path, self._create(path))
        return SimFile(self, path, self._media.file(path))

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self._media.try_find(path) is not None

    def size(self, path: str) -> int:
        self.check_alive()
        return len(self._media.file(path).current)

    def changed_ms(self, path: str) -> int:
        self.check_alive()
        return self._media.file(path).changed_ms

    def list_names(self, path: str) -> list[str]:
        self.check_alive()
        return sorted(self._media.directory(path).names)

    def make_directories(self, path: str) -> None:
        self.check_alive()
        parent, walked = self._media.root, ""
        for name in path_parts(path):
            walked = f"{walked}/{name}"
            child = parent.names.get(name)
            if child is None:
                self.before_change("make_directories", walked)
                child = MediaDirectory()
                parent.change(NameChange(name, child))
            if not isinstance(child, MediaDirectory):
                raise StorageFault(f"{walked}: not a directory")
            parent = child

    def read_file(self, path: str) -> bytes:
        self.check_alive()
        self.maybe_fail("pread", path)
        return bytes(self._media.file(path).current)

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
        self.sync_directory(posixpath.dirname(normal_path(path)))

    def rename(self, source: str, target: str) -> None:
        source, target = normal_path(source), normal_path(target)
        self.before_change("rename", source)
        node = self._media.try_find(source)
        if node is None:
            raise StorageFault(f"{source}: no such file or directory")
        if posixpath.dirname(source) != posixpath.dirname(target):
            raise StorageFault(f"{source}: a rename into another directory is not modelled")
        replaced = self._media.try_find(target)
        if isinstance(replaced, MediaDirectory) and replaced.names:
            raise StorageFault(f"{target}: directory not empty")
        self._release(replaced)
        if isinstance(node, MediaFile):
            self.note_changed(node)
        names = posixpath.basename(target), posixpath.basename(source)
        self._parent(source).change(NameChange(names[0], node, source=names[1]))

    def unlink(self, path: str) -> None:
        path = normal_path(path)
        self.check_alive()
        node = self._media.try_find(path)
        if node is None:
            return
        if isinstance(node, MediaDirectory):
            raise StorageFault(f"{path}: is a directory")
        self.before_change("unlink", path)
        self._release(node)
        self._parent(path).change(NameChange(posixpath.basename(path), None))

    def remove_directory(self, path: str) -> None:
        path = normal_path(path)
        self.check_alive()
        if self._media.try_find(path) is None:
            return
        if self._media.directory(path).names:
            raise StorageFault(f"{path}: directory not empty")
        self.before_change("remove_directory", path)
        self._parent(path).change(NameChange(posixpath.basename(path), None))

    def sync_directory(self, path: str) -> None:
        directory = self._media.directory(path)
        self.before_change("sync_directory", path)
        directory.sync()

    def space(self, path: str) -> DiskSpace:
        self.check_alive()
        self.maybe_fail("space", path)
        self._media.directory(path)
        capacity = self._media.capacity_bytes
        total = BOUNDLESS_BYTES if capacity is None else capacity
        return DiskSpace(total, max(0, total - self._media.used_bytes))

    def lock(self, path: str) -> DiskFile:
        self.check_alive()
        path = normal_path(path)
        if path in self._media.locks:
            raise UserError(f"{path} is locked: another broker uses this directory")
        file = self._media.try_find(path) or self._create(path)
        if not isinstance(file, MediaFile):
            raise StorageFault(f"{path}: not a file")
        handle = SimFile(self, path, file)
        self._media.locks[path] = handle
        return handle

    async def run(self, operation: Callable[[], T], work: DiskWork = DiskWork.READ) -> T:
        """In place; with a delay, half of it passes before the operation and half after.

        There is always a free thread: no kind of work waits or is refused.
        """
        delay_s = self._run_delay_s() if self._run_delay_s is not None else 0.0
        if delay_s <= 0:
            return operation()
        await asyncio.sleep(delay_s / 2)
        outcome = operation()
        await asyncio.sleep(delay_s / 2)
        return outcome

    async def sync_files(
        self, files: Sequence[DiskFile], work: DiskWork = DiskWork.FLUSH
    ) -> list[StorageFault | None]:
        return await self.run(lambda: [_try_sync(file) for file in files], work)

    async def write_gathered(
        self,
        target: DiskFile,
        position: int,
        head: Buffer,
        ranges: Sequence[tuple[DiskFile, int, int]],
        work: DiskWork = DiskWork.FLUSH,
    ) -> None:
        await self.run(lambda: write_gathered_now(target, position, head, ranges), work)

    def load_of(self, work: DiskWork) -> DiskLoad:
        return DiskLoad()

    # --- for the files opened here ----------------------------------------------------------------

    def check_alive(self) -> None:
        if self._dead:
            raise SimulatedCrash

    def before_change(self, call: str, path: str) -> None:
        """Count a changing call; the hook or a planted fault may stop it."""
        self.check_alive()
        self.calls += 1
        if self.on_call is not None:
            self.on_call(self, call, path)
        self.maybe_fail(call, path)

    def maybe_fail(self, call: str, path: str) -> None:
        for fault in self._faults:
            if fault.call == call and fault.path_part in path and fault.times > 0:
                fault.times -= 1
                raise StorageFault(f"{path}: {call}: input/output error (simulated)")

    def take_space(self, growth_bytes: int) -> int:
        """The number of these bytes that the medium has room for; they count as used."""
        capacity = self._media.capacity_bytes
        if capacity is not None and growth_bytes > 0:
            growth_bytes = max(0, min(growth_bytes, capacity - self._media.used_bytes))
        self._media.used_bytes += growth_bytes
        return growth_bytes

    def note_changed(self, file: MediaFile) -> None:
        file.changed_ms = self._media.wall_ms()

    def note_mapped(self, file: MediaFile) -> None:
        self._mapped[file] = len(file.current)

    def check_cut(self, file: MediaFile, size: int, path: str) -> None:
        invariant(
            size >= self._mapped.get(file, 0), f"{path}: mapped bytes were cut in place (SIGBUS)"
        )

    def unlock(self, file: SimFile) -> None:
        if self._media.locks.get(file.path) is file:
            del self._media.locks[file.path]

    def _create(self, path: str) -> MediaFile:
        parent = self._parent(path)
        name = posixpath.basename(path)
        if name in parent.names:
            raise StorageFault(f"{path}: file exists")
        self.before_change("create", path)
        file = MediaFile()
        self.note_changed(file)
        parent.change(NameChange(name, file))
        return file

    def _parent(self, path: str) -> MediaDirectory:
        return self._media.directory(posixpath.dirname(path))

    def _release(self, node: Node | None) -> None:
        if isinstance(node, MediaFile):
            self._media.used_bytes -= len(node.current)


def _try_sync(file: DiskFile) -> StorageFault | None:
    try:
        file.sync()
    except StorageFault as fault:
        return fault
    return None
