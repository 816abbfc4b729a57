"""Keeps the swap of a folder and the writing of batches apart, over threads and processes.

A batch that is written while its folder is swapped would land in the folder that is thrown away.
Writers share the lock; several runs may write to one output directory.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO, final

__all__ = ["WriteLock"]


@final
class WriteLock:
    """A lock on a file; a process that dies gives it back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """No folder is swapped inside this block. A swap that is under way takes milliseconds."""
        with self._opened() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def try_swapping(self) -> Iterator[bool]:
        """True: no batch is written inside this block. False: one is being written."""
        with self._opened() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _opened(self) -> IO[bytes]:
        self._path.parent.mkdir(parents=True, exist_ok=True)  # a user may have removed all results
        return self._path.open("ab")
