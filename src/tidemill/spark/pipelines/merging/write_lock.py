"""Keeps the swap of a folder and the writing of batches apart, over threads and processes.

A batch that is written while its folder is swapped would land in the folder that is thrown away.
Writers share the lock; several runs may write to one output directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import final

__all__ = ["WriteLock"]


@final
class WriteLock:
    """A lock on the output directory itself; a process that dies gives it back.

    A file for it could be removed while a batch is written: the next one to come would make a new
    file, and have a lock of its own.
    """

    def __init__(self, output: Path) -> None:
        self._output = output

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """No folder is swapped inside this block. A swap that is under way takes milliseconds."""
        with self._opened() as number:
            fcntl.flock(number, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def try_swapping(self) -> Iterator[bool]:
        """True: no batch is written inside this block. False: one is being written."""
        with self._opened() as number:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        self._output.mkdir(parents=True, exist_ok=True)  # a user may have removed all results
        number = os.open(self._output, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield number
        finally:
            os.close(number)
