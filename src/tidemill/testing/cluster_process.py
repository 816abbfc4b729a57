"""Several real brokers under their supervisor, started as a user starts them.

cluster = ClusterProcess(tmp_path / "data", brokers=3).start()
producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
...
assert cluster.stop() == 0
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self, final

from tidemill.core.clock import SystemClock
from tidemill.core.errors import TidemillError
from tidemill.testing.broker_process import TIDEMILL, up_command
from tidemill.testing.child_process import STOP_TIMEOUT_S, ChildProcess

__all__ = ["ClusterNotReady", "ClusterProcess"]

WAIT_S: Final = 60.0
_POLL_S = 0.02
_LOG_SHOWN_CHARS = 4000
_READY = re.compile(r"^ready: (\S+)$", re.MULTILINE)


@final
class ClusterNotReady(TidemillError):
    """The brokers ended, or were not ready in time. A note holds the end of the log."""


@final
class ClusterProcess:
    """`tidemill up --brokers N` on free ports; it may be started again, on other ports."""

    def __init__(
        self,
        data_dir: Path,
        *settings: str,
        brokers: int = 3,
        options: Sequence[str] = (),
        command: Sequence[str] = TIDEMILL,
        new_session: bool = False,
    ) -> None:
        """`new_session`: Ctrl-C in the terminal reaches only the caller, which stops them."""
        self.addresses: list[str] = []
        """HOST:PORT of each broker, by its id."""
        up = up_command(command, data_dir, "127.0.0.1:0", settings)
        self._process = ChildProcess(
            [*up, "--brokers", str(brokers), *options],
            data_dir.with_name(f"{data_dir.name}.log"),
            stdout_path=data_dir.with_name(f"{data_dir.name}.out"),
            new_session=new_session,
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self._process.pid

    def start(self) -> Self:
        """Start it and wait until all brokers serve. Raises ClusterNotReady."""
        self._process.spawn()
        self.addresses = self._wait(_READY, self._process.output)[1].split(",")
        return self

    def wait_log(self, pattern: str) -> re.Match[str]:
        """Wait for a line of this run's log. Raises ClusterNotReady."""
        return self._wait(re.compile(pattern, re.MULTILINE), self._process.log)

    def _wait(self, pattern: re.Pattern[str], text: Callable[[], str]) -> re.Match[str]:
        clock = SystemClock()
        deadline = clock.monotonic() + WAIT_S
        while (found := pattern.search(text())) is None:
            if self._process.wait(_POLL_S) is not None or clock.monotonic() > deadline:
                failure = ClusterNotReady(f"{pattern.pattern!r} did not come")
                failure.add_note(self._process.log()[-_LOG_SHOWN_CHARS:])
                raise failure
        return found

    def log(self) -> str:
        return self._process.log()

    def broker_pid(self, broker_id: int) -> int:
        """The process of a broker's last run that was ready."""
        pids = re.findall(rf"broker {broker_id} .*pid (\d+)$", self.log(), re.MULTILINE)
        return int(pids[-1])

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL for one broker; the supervisor starts it again."""
        os.kill(self.broker_pid(broker_id), signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL for the supervisor."""
        self._process.kill()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """End all with SIGTERM; the exit code."""
        return self._process.stop(timeout_s)
