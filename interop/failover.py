"""Java's producer and groups at work while every broker is killed, and one stands still."""

# ruff: noqa: S603 - it starts programs

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final, final

from confluent_kafka.admin import AdminClient

from interop.brokers import Brokers
from interop.kafka_tools import kafka_libraries
from interop.programs import HERE, RUN_TIMEOUT_S, Failed, Skipped, last_lines, tool_path
from tidemill.testing.cluster_process import ClusterProcess

__all__ = ["java_failover"]

TOPIC: Final = "failover"
STEP_TIMEOUT_S: Final = 180
"""Only catches a hang: on a quiet machine a broker is back after a few seconds."""
_POLL_S = 0.02
_PROGRESS = re.compile(r"^progress (\d+) (\d+) (\d+)$", re.MULTILINE)


def java_failover(version: str, brokers: Brokers) -> None:
    """java/Failover.java checks what was acknowledged, read and committed."""
    tool_path("javac")  # a runtime alone cannot run a source file
    cluster = brokers.cluster
    if cluster is None or brokers.count != 3:
        raise Skipped("it needs three brokers")
    source = str(HERE / "java" / "Failover.java")
    command = (tool_path("java"), "-cp", kafka_libraries(version), source, brokers.bootstrap)
    with _working(*command) as work:
        work.goes_on()
        for broker_id in range(brokers.count):
            cluster.kill_broker(broker_id)
            _wait_back(cluster, work, broker_id, times=1)
            work.goes_on()
        still = _leader(brokers, work)
        os.kill(cluster.broker_pid(still), signal.SIGSTOP)
        _wait_back(cluster, work, still, times=2)
        work.goes_on()
        work.finish()


def _wait_back(cluster: ClusterProcess, work: _Work, broker_id: int, *, times: int) -> None:
    """It has ended with SIGKILL so many times, by us or by its peers, and is ready again."""
    for event in ("ended with SIGKILL", "is ready again"):
        line = f"[supervisor] broker {broker_id} {event}"
        work.wait(partial(_is_logged, cluster, line, times), f"line {times} of {line!r}")


def _is_logged(cluster: ClusterProcess, line: str, times: int) -> bool:
    return cluster.log().count(line) >= times


def _leader(brokers: Brokers, work: _Work) -> int:
    """Of partition 0: a broker whose clients notice that it stands still."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})

    found: list[int] = []

    def is_there() -> bool:
        topic = admin.list_topics(TOPIC, STEP_TIMEOUT_S).topics[TOPIC]
        found.append(topic.partitions[0].leader)
        return found[-1] >= 0

    work.wait(is_there, f"leader of {TOPIC}-0")
    return found[-1]


@contextmanager
def _working(*command: str) -> Iterator[_Work]:
    """The program, ended at once if the caller fails."""
    with TemporaryDirectory() as folder:
        printed = Path(folder) / "printed"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            yield _Work(process, printed)
        finally:
            process.kill()
            process.wait()


@final
class _Work:
    """The running program."""

    def __init__(self, process: subprocess.Popen[bytes], printed: Path) -> None:
        self._process = process
        self._printed = printed

    def goes_on(self) -> None:
        """Both groups read what is acknowledged from now on."""
        before = self._progress()[0]
        self.wait(lambda: min(self._progress()) > before, f"progress after {before} records")

    def finish(self) -> None:
        """It has compared everything."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            exit_code = self._process.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"no end within {RUN_TIMEOUT_S} s") from None
        if exit_code != 0:
            raise self._failure(f"exit code {exit_code}")

    def wait(self, is_there: Callable[[], bool], what: str) -> None:
        """Raises Failed if the program ends before that, or it takes too long."""
        deadline = monotonic() + STEP_TIMEOUT_S
        while not is_there():
            if self._process.poll() is not None:
                raise self._failure(f"exit code {self._process.returncode}")
            if monotonic() > deadline:
                raise self._failure(f"no {what} within {STEP_TIMEOUT_S} s")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_S)

    def _failure(self, why: str) -> Failed:
        return Failed(f"{why}\n{last_lines(self._printed.read_text())}")

    def _progress(self) -> tuple[int, ...]:
        """Acknowledged records, and those that each of the groups has read."""
        lines = _PROGRESS.findall(self._printed.read_text())
        return tuple(map(int, lines[-1])) if lines else (0, 0, 0)
