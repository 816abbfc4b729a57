"""A program in its own process: its output goes to a log file, and the parent can always end it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, final

__all__ = ["ChildProcess"]

STOP_TIMEOUT_S: Final = 60.0


@final
class ChildProcess:
    """May be spawned again after it ended; the log keeps the output of all runs."""

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        *,
        stdout_path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        new_session: bool = False,
    ) -> None:
        """Standard output goes to `stdout_path` if given, else to the log like standard error.

        `new_session`: Ctrl-C in the terminal reaches only the parent, which ends the child.
        """
        self.command = list(command)
        self.log_path = log_path
        self._stdout_path = stdout_path or log_path
        self._environment = environment or {}
        self._new_session = new_session
        self._process: subprocess.Popen[bytes] | None = None
        self._log_at = 0
        """Where this run begins in the log."""
        self._stdout_at = 0
        """Where this run begins in the file of its standard output."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or before it was first started."""
        return self._process.poll() if self._process is not None else None

    def spawn(self) -> None:
        """Start the program without waiting for anything."""
        with self.log_path.open("ab") as log, self._stdout_path.open("ab") as stdout:
            self._log_at, self._stdout_at = log.tell(), stdout.tell()
            self._process = subprocess.Popen(  # noqa: S603 - the command is the caller's own
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=self._new_session,
            )

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; the exit code, or None if the program still runs."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it as a crash would: SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """End it with SIGTERM; the exit code. Raises TimeoutExpired, after SIGKILL, if it hangs."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        finally:
            self.kill()

    def output(self) -> str:
        """The standard output of this run so far; with standard error unless they are apart."""
        return _text_from(self._stdout_path, self._stdout_at)

    def log(self) -> str:
        """The log of this run so far."""
        return _text_from(self.log_path, self._log_at)

    def last_line(self) -> str:
        """The last line of this run's log, for an error message."""
        lines = self.log().strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


def _text_from(path: Path, position: int) -> str:
    with path.open("rb") as file:
        file.seek(position)
        return file.read().decode(errors="replace")
