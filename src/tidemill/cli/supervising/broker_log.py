"""Standard error of one broker: its log, without ever waiting for a reader.

A broker that waits for its log stands still, and its peers would take it for dead: when a terminal
or the supervisor is stopped, or a pipe is not read. What standard error does not take now is kept
up to a bound, then dropped and counted; it follows with the next line, or at the end.
"""

from __future__ import annotations

import logging
import os
import select
from collections import deque
from typing import final

__all__ = ["BrokerLog"]

KEPT_BYTES_MAX = 1024 * 1024
WRITE_BYTES_MAX = 4096
"""PIPE_BUF: a pipe that can be written to takes so much at once without blocking."""
CLOSE_S = 1.0
NOW_S = 0.0


@final
class BrokerLog(logging.Handler):
    """Writes whole lines in order; any thread may log."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._say(self.format(record))
        except Exception:  # noqa: BLE001 - as the standard handlers do: a bad line ends nothing
            self.handleError(record)

    def close(self) -> None:
        """Give the reader a second to take the rest."""
        self.acquire()
        try:
            self._write_kept(CLOSE_S)
        finally:
            self.release()
        super().close()

    def _say(self, line: str) -> None:
        self._write_kept(NOW_S)
        data = f"{line}\n".encode(errors="backslashreplace")
        if self._kept_bytes + len(data) > KEPT_BYTES_MAX:
            self._dropped += 1
            return
        if self._dropped and not self._kept:
            self._keep(f"{self._dropped} lines were dropped: no reader\n".encode())
            self._dropped = 0
        self._keep(data)
        self._write_kept(NOW_S)

    def _keep(self, data: bytes) -> None:
        self._kept.append(data)
        self._kept_bytes += len(data)

    def _write_kept(self, wait_s: float) -> None:
        while self._kept:
            _, writable, _ = select.select((), (self._descriptor,), (), wait_s)
            if not writable:
                return
            self._write_some()

    def _write_some(self) -> None:
        data = self._kept.popleft()
        try:
            written = os.write(self._descriptor, data[:WRITE_BYTES_MAX])
        except BlockingIOError:
            written = 0
        except OSError:  # nobody will ever read it: the broker goes on
            written = len(data)
        self._kept_bytes -= written
        if written < len(data):
            self._kept.appendleft(data[written:])
