"""Standard error of one broker: its log, without ever waiting for a reader.

A broker that waits for its log stands still, and its peers would take it for dead: when a terminal
or the supervisor is stopped, or a pipe is not read. What standard error does not take now is kept
up to a bound, then dropped and counted; it follows with the next line, or at the end.
"""

from __future__ import annotations

import logging
import select
from typing import final

from tidemill.cli.supervising.kept_lines import KeptLines

__all__ = ["BrokerLog"]

CLOSE_S = 1.0
NOW_S = 0.0


@final
class BrokerLog(logging.Handler):
    """Writes whole lines in order; any thread may log."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._kept = KeptLines(descriptor)

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
        self._kept.add(line)
        self._write_kept(NOW_S)

    def _write_kept(self, wait_s: float) -> None:
        while self._kept:
            _, writable, _ = select.select((), (self._descriptor,), (), wait_s)
            if not writable:
                return
            self._kept.write_some()
