"""A real broker in a process of its own, as a user would start it; a test may kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class BrokerProcess:
    """`tidemill up` on a free port, or on the port it had before it was killed."""

    def __init__(self, data_dir: Path, *settings: str) -> None:
        self.data_dir = data_dir
        self.settings = settings
        self.log_path = data_dir.with_suffix(".log")
        self.bootstrap = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> BrokerProcess:
        listen = self.bootstrap or "127.0.0.1:0"
        flags = [flag for setting in self.settings for flag in ("--set", setting)]
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *("-m", "tidemill.cli.main", "up", "--listen", listen),
                    *("--data-dir", str(self.data_dir), *flags),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.bootstrap = self._wait_ready()
        return self

    def _wait_ready(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = threading.Timer(START_TIMEOUT_S, self._process.kill)
        deadline.start()
        try:
            for line in self._process.stdout:
                if line.startswith("ready: "):
                    return line.removeprefix("ready: ").strip()
        finally:
            deadline.cancel()
        self.kill()
        raise AssertionError(f"the broker did not start:\n{self.log_path.read_text()[-4000:]}")

    def kill(self) -> None:
        """As if the process were gone at once; the page cache stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_TIMEOUT_S)
        finally:
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
            process.wait()
