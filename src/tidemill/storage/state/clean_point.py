"""How far compaction has come in one log: every key below the *clean point* was looked at once.

The file beside the segments is a hint that saves work, but only downwards: too low a point costs a
second look, too high a one would let compaction believe that it has seen what it has not. So it is
taken away, durably, before the log is cut below it, and set only when what it speaks of is durable.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import final

from tidemill.core.errors import StorageFault
from tidemill.storage.files.checked_file import decode_checked, encode_checked
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.log_file_names import CLEAN_POINT_NAME, TEMPORARY_SUFFIX

__all__ = ["CleanPoint"]

_KIND = b"CLPT"
_VERSION = 1
_OFFSET = Struct(">q")


@final
class CleanPoint:
    """The clean point of one log, read when it is first asked for."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{CLEAN_POINT_NAME}"
        self._offset: int | None = None

    @property
    def offset(self) -> int:
        """All below it is compacted; 0 where nothing is known."""
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
        """The file that will hold the next point: `write` to it, then `move_to` the point."""
        self._disk.unlink(self._path + TEMPORARY_SUFFIX)
        return self._disk.open(self._path + TEMPORARY_SUFFIX, create=True)

    def move_to(self, offset: int) -> None:
        """What `write` wrote is durable; the new point is once the directory is synced."""
        self._disk.rename(self._path + TEMPORARY_SUFFIX, self._path)
        self._offset = offset

    def _read(self) -> int:
        if not self._disk.exists(self._path):
            return 0
        try:
            data = self._disk.read_file(self._path)
            payload = decode_checked(data, kind=_KIND, version=_VERSION, name=self._path)
            offset: int = _OFFSET.unpack(payload)[0]
        except (StorageFault, StructError):
            return 0  # everything is looked at again
        return offset

    @staticmethod
    def write(file: DiskFile, offset: int) -> None:
        """In a thread."""
        file.pwrite([encode_checked(_KIND, _VERSION, _OFFSET.pack(offset))], 0)
        file.sync()
        file.close()
