"""One broker in its own process, as the supervisor sees it: started, ready, ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import final

from tidemill.cli.failures import REFUSED
from tidemill.cli.supervising.broker_plan import BrokerPlan
from tidemill.cli.supervising.log_output import LINE_BYTES_MAX, LogOutput, relay_lines
from tidemill.cli.text import escape_bytes

__all__ = ["BrokerChild", "shown_exit"]

_READY = b"ready: "


@final
class BrokerChild:
    """May run several times; the port that its first run was given is kept."""

    def __init__(self, plan: BrokerPlan, output: LogOutput) -> None:
        self.plan = plan
        self.address = ""
        """HOST:PORT; empty until it was ready for the first time."""
        self.pid = 0
        """Of the last run."""
        self._output = output
        self._process: asyncio.subprocess.Process | None = None
        self._is_ending = False

    @property
    def name(self) -> str:
        return f"broker {self.plan.broker_id}"

    async def run(self, ready: Callable[[], None]) -> int:
        """Run it until it ends; its exit code, negative for a signal. Calls `ready` on the way."""
        try:
            process = await self._spawn()
        except OSError as error:  # no memory or no process left: perhaps later
            self._output.say(f"[{self.name}] cannot be started: {error.strerror}")
            return REFUSED
        self._process, self.pid = process, process.pid
        if self._is_ending:
            self.send(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stderr is not None
        _, _, exit_code = await asyncio.gather(
            self._await_ready(process.stdout, ready),
            relay_lines(process.stderr, self._output, f"[{self.name}] "),
            process.wait(),
        )
        self._process = None
        return exit_code

    async def _spawn(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.plan.command(os.getpid(), self.address),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which ends all at once
        )

    def end(self) -> None:
        """Ask it to end; a run that is about to begin is ended as well."""
        self._is_ending = True
        self.send(signal.SIGTERM)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _await_ready(self, stdout: asyncio.StreamReader, ready: Callable[[], None]) -> None:
        line = await _first_line(stdout)
        if line.startswith(_READY):
            self.address = line.removeprefix(_READY).decode(errors="replace").strip()
            ready()
        elif line:
            self._output.say(f"[{self.name}] {escape_bytes(line.rstrip())}")
        await relay_lines(stdout, self._output, f"[{self.name}] ")


async def _first_line(stdout: asyncio.StreamReader) -> bytes:
    try:
        return await stdout.readline()
    except ValueError:  # longer than any line of ours
        return b""


def shown_exit(exit_code: int) -> str:
    """An exit code for people: `exit code 1` or `SIGKILL`."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
