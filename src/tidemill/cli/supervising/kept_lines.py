"""Lines that wait for a pipe or a terminal: bounded, written in order, never waited for.

What does not fit is dropped and counted; the count is a line of its own when all before it is out.
"""

from __future__ import annotations

import os
from collections import deque
from typing import final

__all__ = ["KeptLines"]

KEPT_BYTES_MAX = 1024 * 1024
WRITE_BYTES_MAX = 4096
"""PIPE_BUF: a pipe that can be written to takes so much at once without blocking."""


@final
class KeptLines:
    """What one descriptor has not taken yet. Its owner finds out when it can be written to."""

    def __init__(self, descriptor: int, *, prefix: str = "") -> None:
        self._descriptor = descriptor
        self._prefix = prefix
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._dropped = 0

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._kept)

    def add(self, line: str) -> None:
        """The line waits, or is dropped if too much does."""
        data = f"{line}\n".encode(errors="backslashreplace")
        if self._kept_bytes + len(data) > KEPT_BYTES_MAX:
            self._dropped += 1
            return
        self._keep(data)

    def write_some(self) -> None:
        """Write as much as a descriptor that can be written to takes at once."""
        data = self._kept.popleft()
        try:
            written = os.write(self._descriptor, data[:WRITE_BYTES_MAX])
        except BlockingIOError:
            written = 0
        except OSError:  # no reader is left, or no room: the line is lost, and nothing ends
            written = len(data)
        self._kept_bytes -= written
        if written < len(data):
            self._kept.appendleft(data[written:])
        elif not self._kept and self._dropped:
            self._keep(f"{self._prefix}{self._dropped} lines were dropped: no reader\n".encode())
            self._dropped = 0

    def _keep(self, data: bytes) -> None:
        self._kept.append(data)
        self._kept_bytes += len(data)
