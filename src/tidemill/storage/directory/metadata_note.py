"""The newest version of the metadata that the broker of a data directory has seen.

`metadata-version` in the directory has it. A store that is older was put back from a copy: it lacks
topics whose records are here, and epochs that were given out would be given out again. So a broker
that finds one refuses to start. The note may be some seconds behind; it is never ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from tidemill.core.errors import UserError
from tidemill.storage.files.disk import Disk

__all__ = ["MetadataNote", "forget_version", "noted_version"]

NOTE_NAME = "metadata-version"
_LENGTH_MAX = 64


def noted_version(disk: Disk, data_dir: str) -> tuple[int, int]:
    """Epoch and seq that were noted; zeros if there is no note."""
    path = f"{data_dir}/{NOTE_NAME}"
    if not disk.exists(path):
        return 0, 0
    text = disk.read_file(path)[:_LENGTH_MAX].decode(errors="replace")
    try:
        epoch, seq = map(int, text.split())
    except ValueError:
        raise UserError(
            f"{path} is damaged: expected an epoch and a number; remove it to start without it"
        ) from None
    return epoch, seq


def forget_version(disk: Disk, data_dir: str) -> None:
    """There are no logs yet: what is noted is of a former cluster."""
    if disk.exists(f"{data_dir}/{NOTE_NAME}"):
        disk.unlink(f"{data_dir}/{NOTE_NAME}")
        disk.sync_directory(data_dir)


@final
class MetadataNote:
    """Keeps the file of one data directory."""

    def __init__(self, disk: Disk, data_dir: str, version: Callable[[], tuple[int, int]]) -> None:
        self._disk = disk
        self._path = f"{data_dir}/{NOTE_NAME}"
        self._version = version
        self._written = (0, 0)

    def take(self) -> Callable[[], None]:
        """Capture the version that is known now; returns its writer: for `Disk.run`."""
        return partial(self._write, self._version())

    def _write(self, version: tuple[int, int]) -> None:
        if version > self._written:
            self._disk.write_file_atomically(self._path, b"%d %d\n" % version)
            self._written = version
