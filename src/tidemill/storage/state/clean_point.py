"""How far compaction has come in one log: it has seen every key below the *clean point* once.

The file beside the segments is a hint that saves work. A point that is too low costs a second look;
one that is too high would make compaction skip records it has not seen. So the file is removed,
durably, before the log is cut below the point, and written only when what it claims is durable.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import final

from tidemill.core.errors import StorageFault
from tidemill.storage.files.checked_file import encode_checked, read_checked
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.log_file_names import CLEAN_POINT_NAME, TEMPORARY_SUFFIX

__all__ = ["CleanPoint"]

_KIND = b"CLPT"
_VERSION = 1
_OFFSET = Struct(">q")


@final
class CleanPoint:
    """The clean point of one log, read on first use."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{CLEAN_POINT_NAME}"
        self._offset: int | None = None

    @property
    def offset(self) -> int:
        """Everything below it is compacted; 0 if nothing is known."""
        if self._offset is None:
            self._offset = self._read()
        return self._offset

    def lower_to(self, offset: int) -> None:
        """Before the log is cut at `offset`: no point above it may survive the cut."""
        if self.offset > offset:
            self._offset = 0
            self._disk.unlink(self._path)
            self._disk.sync_directory(self._directory)

    def open_next(self) -> DiskFile:
        """The file for the next point: `write` to it, then `move_to` the point."""
        self._disk.unlink(self._path + TEMPORARY_SUFFIX)
        return self._disk.open(self._path + TEMPORARY_SUFFIX, create=True)

    def move_to(self, offset: int) -> None:
        """The bytes from `write` are durable; the point is too once the directory is synced."""
        self._disk.rename(self._path + TEMPORARY_SUFFIX, self._path)
        self._offset = offset

    def _read(self) -> int:
        if not self._disk.exists(self._path):
            return 0
        try:
            payload = read_checked(self._disk, self._path, kind=_KIND, version=_VERSION)
            offset: int = _OFFSET.unpack(payload)[0]
        except (StorageFault, StructError):
            return 0  # compaction looks at everything again
        return offset

    @staticmethod
    def write(file: DiskFile, offset: int) -> None:
        """Runs in a thread."""
        file.pwrite([encode_checked(_KIND, _VERSION, _OFFSET.pack(offset))], 0)
        file.sync()
        file.close()
