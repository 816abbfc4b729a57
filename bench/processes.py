"""Brokers under test as processes: started, timed, and measured through /proc."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, final

from bench.wire_client import Address, answers_api_versions
from tidemill.testing.child_process import ChildProcess

__all__ = [
    "Launch",
    "Measured",
    "MeasuredBroker",
    "MeasurementFailed",
    "Memory",
    "StartTimes",
    "Subject",
    "cpu_seconds",
    "free_port",
    "memory_of",
]

START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 30
POLL_S = 0.002
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class MeasurementFailed(Exception):
    """A row could not be measured; the text tells the user why."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a broker whose data directory is prepared."""

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    metrics: Address | None = None


class Subject(Protocol):
    """A kind of broker. `prepare` runs once per data directory and is never timed."""

    @property
    def name(self) -> str: ...

    def prepare(self, data_dir: Path, port: int) -> None: ...

    def launch(self, data_dir: Path, port: int) -> Launch: ...

    def topic_config(self, *, flush: str) -> dict[str, str]: ...


class Measured(Protocol):
    """One broker or several, as far as a driver needs them."""

    @property
    def address(self) -> Address: ...

    def cpu_seconds(self) -> float: ...


@final
@dataclass(frozen=True, slots=True)
class Memory:
    """RssAnon cannot be reclaimed; Rss also counts mapped files, which the kernel can drop."""

    anon_mb: float
    resident_mb: float


@final
@dataclass(frozen=True, slots=True)
class StartTimes:
    """From the start of the process to an open port, and to the first answer."""

    port_open_s: float
    answer_s: float


@final
class MeasuredBroker:
    """One broker and its data directory; may be started again after `stop` or `kill`."""

    def __init__(self, subject: Subject, data_dir: Path) -> None:
        self.subject = subject
        self.name = subject.name
        self.address = Address("127.0.0.1", free_port())
        self.data_dir = data_dir
        data_dir.mkdir(parents=True)
        subject.prepare(data_dir, self.address.port)
        launch = subject.launch(data_dir, self.address.port)
        self.metrics = launch.metrics
        self._process = ChildProcess(
            launch.command,
            data_dir.with_suffix(".log"),
            environment=launch.environment,
            new_session=True,  # on Ctrl-C we stop it, after the client has ended
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> StartTimes:
        """Start it and wait until it answers."""
        began = time.monotonic()
        self.spawn()
        port_open_s = 0.0
        while time.monotonic() - began < START_SECONDS_MAX:
            self.check_alive()
            if not port_open_s and _accepts(self.address):
                port_open_s = time.monotonic() - began
            if port_open_s and answers_api_versions(self.address):
                return StartTimes(port_open_s, time.monotonic() - began)
            time.sleep(POLL_S)
        raise MeasurementFailed(f"{self.name} did not answer within {START_SECONDS_MAX} s")

    def spawn(self) -> None:
        """Start it without waiting."""
        self._process.spawn()

    def check_alive(self) -> None:
        code = self._process.exit_code
        if code is not None:
            raise MeasurementFailed(f"{self.name} ended with {code}: {self._process.last_line()}")

    def stop(self) -> None:
        """End it cleanly, or by force if that takes too long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.stop(STOP_SECONDS_MAX)

    def kill(self) -> None:
        """End it as a crash would: SIGKILL."""
        self._process.kill()

    def cpu_seconds(self) -> float:
        """User and system time of all its threads so far."""
        self.check_alive()
        return cpu_seconds(self.pid)

    def memory(self) -> Memory:
        self.check_alive()
        return memory_of(self.pid)


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, in ticks of 10 ms."""
    # The name in parentheses may hold spaces; the fields after it are counted from 3.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def memory_of(pid: int) -> Memory:
    status = Path(f"/proc/{pid}/status").read_text()
    kib = {name: int(value) for name, value in re.findall(r"(\w+):\s+(\d+) kB", status)}
    return Memory(anon_mb=kib["RssAnon"] * 1024 / 1e6, resident_mb=kib["VmRSS"] * 1024 / 1e6)


def free_port() -> int:
    """A port that is free now; another program is unlikely to take it before the broker does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _accepts(address: Address) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0
