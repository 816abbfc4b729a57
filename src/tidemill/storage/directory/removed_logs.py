"""Logs that were taken out of service: what happens to their directories.

    leaving      `add` on the loop: no longer served; its directory still has its name
    renamed      `settle` in a thread gave it a name that no log has
    purgeable    `settle` synced the data directory, once for all of them: it never comes back
    gone         `purge_slice` in a thread unlinked its files, a few at a time

Files are unlinked only after the sync. A log that came back without some of its files would look
damaged; one that comes back whole is recognised as the log of a deleted topic. A name is free for a
new log when its old directory is no longer leaving.

The loop and threads share the queues: each step takes a directory out of one queue and puts it into
the next by single operations, so that even two threads that settle at once rename it once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import final

from tidemill.core.errors import StorageFault
from tidemill.core.rng import Rng
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.log_file_names import DELETED_SUFFIX

__all__ = ["RemovedLogs"]


@final
class RemovedLogs:
    """The removed logs of one data directory; no more than it had logs."""

    def __init__(self, disk: Disk, root: str, rng: Rng) -> None:
        self._disk = disk
        self._root = root
        self._rng = rng
        self._leaving: dict[str, str] = {}
        """Directories that still have their names, and the names that they get."""
        self._unnamed: deque[str] = deque()
        """Those of them that no thread renames yet."""
        self._renamed: deque[str] = deque()
        """Directories whose new names are not durable yet."""
        self._purgeable: deque[str] = deque()

    def add(self, path: str) -> None:
        """This directory is no longer served. On the loop."""
        self._leaving[path] = self._unused_name()
        self._unnamed.append(path)

    def add_purgeable(self, paths: Iterable[str]) -> None:
        """These were put aside, and their new names are durable."""
        self._purgeable.extend(paths)

    def is_leaving(self, path: str) -> bool:
        """Whether a removed log still has this name."""
        return path in self._leaving

    def put_aside(self, path: str) -> str:
        """Give a directory an unused name now; the new path. Blocks."""
        target = self._unused_name()
        self._disk.rename(path, target)
        return target

    @property
    def is_settled(self) -> bool:
        """Whether all removals so far are durable."""
        return not self._leaving and not self._renamed

    def settle(self) -> None:
        """Make all removals so far durable: for `Disk.run`.

        Raises StorageFault after it has done what it can; call it again.
        """
        try:
            self._rename_all()
        finally:
            self._sync_names()

    def _rename_all(self) -> None:
        faults = []
        for _ in range(len(self._unnamed)):
            with suppress(IndexError):  # `close` may run while a thread does the same
                path = self._unnamed.popleft()
                try:
                    self._rename(path)
                except StorageFault as fault:
                    faults.append(fault)
        if faults:
            raise faults[0]

    def _sync_names(self) -> None:
        settled = tuple(self._renamed)
        if settled:
            self._disk.sync_directory(self._root)
        for path in settled:
            with suppress(ValueError):
                self._renamed.remove(path)
                self._purgeable.append(path)

    def _rename(self, path: str) -> None:
        target = self._leaving[path]
        try:
            self._disk.rename(path, target)
        except StorageFault:
            self._unnamed.append(path)
            raise
        self._renamed.append(target)
        del self._leaving[path]

    def purge_slice(self, files_max: int) -> bool:
        """Unlink up to this many files: for `Disk.run`. True when none is left."""
        while self._purgeable and files_max > 0:
            path = self._purgeable[0]
            self._purgeable.rotate(-1)  # after a fault the others come first
            names = self._disk.list_names(path) if self._disk.exists(path) else []
            for name in names[:files_max]:
                self._disk.unlink(f"{path}/{name}")
            files_max -= max(1, len(names))
            if files_max >= 0:
                self._disk.remove_directory(path)
                self._purgeable.remove(path)
        return not self._purgeable

    def _unused_name(self) -> str:
        return f"{self._root}/{self._rng.uuid().hex}{DELETED_SUFFIX}"
