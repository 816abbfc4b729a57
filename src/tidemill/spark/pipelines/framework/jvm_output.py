"""The output of Spark's JVM: kept away from the terminal, and shown when a run fails.

The JVM prints start-up notices, log4j lines and stack traces of cancelled tasks, also those of its
Python workers. It inherits a temporary file as standard output and error instead of ours. The file
is the only buffer: a pipe that is not read in time would block the JVM. `trim` bounds the file; the
runner calls it between two looks at its queries.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Final, final

from tidemill.core.limits import KIB, MIB

__all__ = ["JvmOutput"]

_FILE_BYTES_MAX: Final = 1 * MIB
_TAIL_BYTES: Final = 32 * KIB
_STDOUT: Final = 1
_STDERR: Final = 2


@final
class JvmOutput:
    """Output of every process that was started inside `captured`."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            # Not 0, 1 or 2: one of those may be closed, and would be free for this file.
            number = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
        self._file = os.fdopen(number, "r+b", buffering=0)
        # Writers share the flag: after `trim` they write at the new end, not at their old position.
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Processes that start inside this block write to the file for the rest of their lives."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # Python has none for a number that was closed when it started
                stream.flush()
        originals = [(number, _try_duplicate(number)) for number in (_STDOUT, _STDERR)]
        try:
            for number, _ in originals:
                os.dup2(self._file.fileno(), number)
            yield
        finally:
            for number, original in originals:
                _restore(number, original)

    def trim(self) -> None:
        """Drop all but the newest output if the file has grown past its limit."""
        if self._size_bytes() > _FILE_BYTES_MAX:
            tail = self._tail()
            os.ftruncate(self._file.fileno(), 0)
            os.write(self._file.fileno(), tail)

    def last_lines(self, count: int) -> list[str]:
        """The newest lines, oldest first."""
        return self._tail().decode(errors="replace").splitlines()[-count:]

    def _size_bytes(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _tail(self) -> bytes:
        start = max(0, self._size_bytes() - _TAIL_BYTES)
        return os.pread(self._file.fileno(), _TAIL_BYTES, start)


def _try_duplicate(number: int) -> int | None:
    """None if the number is closed."""
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    except OSError:
        return None


def _restore(number: int, original: int | None) -> None:
    if original is None:
        os.close(number)
        return
    os.dup2(original, number)
    os.close(original)
