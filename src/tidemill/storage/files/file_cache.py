"""Open files and loaded indexes, bounded: thousands of logs share one set of file descriptors.

A file is opened on first use, and the least recently used one is dropped when there are too many.
Dropping only removes the reference: a thread that still reads or syncs the file keeps it open (see
`disk`). The indexes of closed segments are handled the same way.

Threads of `Disk.run` may call all of it: every step is one atomic operation, and two threads that
open the same file at once merely open it twice. A file that was opened to be read never takes the
place of one that was put here meanwhile: a thread may have opened it before the path got a new
file, and what is appended to the old one is lost.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from contextlib import suppress
from typing import Protocol, final

from tidemill.core.limits import OPEN_FILES_MAX, SEGMENT_INDEXES_MAX, SUSPECT_SEGMENTS_MAX
from tidemill.storage.files.disk import Disk, DiskFile

__all__ = ["FileCache", "IndexHolder"]


class IndexHolder(Protocol):
    """A closed segment, which can load its index again."""

    def drop_index(self) -> None: ...


@final
class FileCache:
    """Open files by path, and segments with a loaded index; drops the least recently used."""

    def __init__(
        self,
        disk: Disk,
        *,
        files_max: int = OPEN_FILES_MAX,
        indexes_max: int = SEGMENT_INDEXES_MAX,
    ) -> None:
        self._disk = disk
        self._files_max = files_max
        self._indexes_max = indexes_max
        self._files: OrderedDict[str, DiskFile] = OrderedDict()
        self._indexes: OrderedDict[IndexHolder, None] = OrderedDict()
        self.suspects: deque[str] = deque(maxlen=SUSPECT_SEGMENTS_MAX)
        """Segments in which a read has found damage: for whoever mends it."""

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str) -> DiskFile:
        """The open file; keep it only for the work at hand."""
        file = self._files.get(path)
        if file is None:
            file = self._disk.open(path)
            self._files.setdefault(path, file)
            self._drop_excess()
            return file
        with suppress(KeyError):
            self._files.move_to_end(path)
        return file

    def put(self, path: str, file: DiskFile) -> None:
        """Take over a file that was just created."""
        self._files[path] = file
        self._drop_excess()

    def _drop_excess(self) -> None:
        if len(self._files) > self._files_max:
            with suppress(KeyError):
                self._files.popitem(last=False)

    def drop(self, path: str) -> None:
        """The path now names another file, or none."""
        self._files.pop(path, None)

    def use_index(self, holder: IndexHolder) -> None:
        """This segment's index is loaded, or will be; another index may be dropped for it."""
        self._indexes[holder] = None
        with suppress(KeyError):
            self._indexes.move_to_end(holder)
        if len(self._indexes) > self._indexes_max:
            self._indexes.popitem(last=False)[0].drop_index()

    def forget_index(self, holder: IndexHolder) -> None:
        """The segment no longer exists, or is active."""
        self._indexes.pop(holder, None)
