"""Two folders change places in one step: a reader finds the one or the other, at every moment."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["check_swap", "swap_folders", "sync_folder", "sync_tree"]

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def swap_folders(first: Path, second: Path) -> None:
    """OSError, and nothing has changed, if the system or the file system cannot do it."""
    try:
        exchange = _LIBC.renameat2
    except AttributeError:  # not Linux
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    names = os.fsencode(first), os.fsencode(second)
    if exchange(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first), None, str(second))


def check_swap(folder: Path) -> None:
    """OSError if folders cannot change places inside `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        first, second = Path(place, "first"), Path(place, "second")
        first.mkdir()
        second.mkdir()
        swap_folders(first, second)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_tree(folder: Path) -> None:
    """Make the names in `folder` and in everything below durable."""
    for path, _, _ in os.walk(folder):
        sync_folder(Path(path))
