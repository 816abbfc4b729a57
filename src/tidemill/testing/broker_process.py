"""A real broker in its own process, started as a user starts it; a test may kill it.

broker = BrokerProcess(tmp_path / "data").start()
producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
...
assert broker.stop() == 0
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self, final

from tidemill.core.clock import SystemClock
from tidemill.core.errors import TidemillError
from tidemill.testing.child_process import STOP_TIMEOUT_S, ChildProcess

__all__ = ["TIDEMILL", "BrokerProcess", "BrokerStartFailed", "faults_in", "up_command"]

TIDEMILL: Final = (sys.executable, "-m", "tidemill.cli.main")
"""The `tidemill` command of this interpreter, whether or not its script is installed."""
START_TIMEOUT_S: Final = 60.0

_POLL_S = 0.02
_READY = re.compile(r"^ready: (\S+)$", re.MULTILINE)
_FAULT = re.compile(r"closed connection from|a request failed, its connection is closed")
_LOG_SHOWN_CHARS = 4000


@final
class BrokerStartFailed(TidemillError):
    """The broker ended, or was not ready in time. A note holds the end of its log."""


@final
class BrokerProcess:
    """`tidemill up` on a free port; started again after `kill` or `stop`, on the same port."""

    def __init__(
        self,
        data_dir: Path,
        *settings: str,
        flags: Sequence[str] = (),
        command: Sequence[str] = TIDEMILL,
        listen: str = "127.0.0.1:0",
    ) -> None:
        """`settings` are KEY=VALUE, `flags` more options of `tidemill up`."""
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(f"{data_dir.name}.log")
        self.bootstrap = ""
        """HOST:PORT; empty until the first start."""
        self._settings = settings
        self._flags = flags
        self._command = command
        self._listen = listen
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start it and wait until it serves. Raises BrokerStartFailed."""
        self.spawn()
        self.wait_ready(timeout_s)
        return self

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until it serves, after `spawn`. Raises BrokerStartFailed."""
        clock = SystemClock()
        deadline = clock.monotonic() + timeout_s
        process = self._process
        assert process is not None, "not started"
        while not self.is_ready():
            if clock.monotonic() > deadline:
                self.kill()
                raise self._start_failed(process, f"not ready after {timeout_s:g} s")
            process.wait(_POLL_S)

    def spawn(self) -> ChildProcess:
        """Start it without waiting."""
        listen = self.bootstrap or self._listen
        command = up_command(self._command, self.data_dir, listen, self._settings)
        stdout_path = self.data_dir.with_name(f"{self.data_dir.name}.out")
        self._process = ChildProcess(
            [*command, *self._flags], self.log_path, stdout_path=stdout_path
        )
        self._process.spawn()
        return self._process

    def is_ready(self) -> bool:
        """Whether it serves; `bootstrap` is known from then on. Raises BrokerStartFailed."""
        assert self._process is not None, "not started"
        ended = self._process.exit_code is not None
        ready = _READY.search(self._process.output())
        if ready is not None:
            self.bootstrap = ready[1]
            return True
        if ended:
            raise self._start_failed(self._process, self._process.last_line())
        return False

    def kill(self) -> None:
        """End it as a crash of the process would; the page cache stays."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """End it with SIGTERM; the exit code. Raises TimeoutExpired, after SIGKILL, if it hangs."""
        process, self._process = self._process, None
        return process.stop(timeout_s) if process is not None else 0

    def connection_faults(self) -> list[str]:
        """Lines of its log, over all runs, about connections that it closed for a fault.

        Of each client address at least the first fault in a minute is there.
        """
        return faults_in(self.log_path.read_text(errors="replace"))

    def _start_failed(self, process: ChildProcess, reason: str) -> BrokerStartFailed:
        failure = BrokerStartFailed(f"the broker did not start: {reason}")
        failure.add_note(process.log()[-_LOG_SHOWN_CHARS:])
        return failure


def faults_in(log: str) -> list[str]:
    """Lines of a broker's log about connections that it closed for a fault."""
    return [line for line in log.splitlines() if _FAULT.search(line)]


def up_command(
    command: Sequence[str], data_dir: Path, listen: str, settings: Sequence[str]
) -> list[str]:
    """The command line that starts a broker; each setting is KEY=VALUE."""
    flags = [flag for setting in settings for flag in ("--set", setting)]
    return [*command, "up", "--listen", listen, "--data-dir", str(data_dir), *flags]
