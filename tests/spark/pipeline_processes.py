"""Pipelines as processes that a test can kill, and a cluster for them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Self

import pyspark

DEADLINE_S = 400.0
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that is too short-lived for Java's second compiler."""


class PipelineProcess:
    """`tidemill pipeline run` and its children, in their own process group."""

    def __init__(self, folder: Path, *args: str, **environment: str) -> None:
        self.log = folder / "pipeline.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.cli.main", "pipeline", "run", *args],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **environment},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """The JVM may live on when the command has ended: end the whole group."""
        with contextlib.suppress(ProcessLookupError):
            self.kill()

    def living(self) -> list[str]:
        """The names of the processes of the group; a dead one may still wait for its parent."""
        command = ["ps", "-eo", "pgid=,stat=,comm="]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        group = str(self._process.pid)
        rows = (line.split(maxsplit=2) for line in shown.splitlines())
        return [row[2] for row in rows if row[0] == group and not row[1].startswith("Z")]

    def wait_until(self, reached) -> None:
        """Poll until `reached`; fails if the process ends first or the deadline passes."""
        late = threading.Event()
        timer = threading.Timer(DEADLINE_S, late.set)
        timer.start()
        try:
            while not reached():
                assert self._process.poll() is None, self.log.read_text()[-3000:]
                assert not late.wait(0.2), self.log.read_text()[-3000:]
        finally:
            timer.cancel()

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)

    def terminate(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self._process.wait(DEADLINE_S)


class Cluster:
    """A standalone master and one worker, from the classes of the installed pyspark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        master = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        self._start("org.apache.spark.deploy.master.Master", *master)
        self._wait_log("Master", "I have been elected leader")
        worker = ("--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0")
        work = ("--work-dir", str(self._folder / "work"))
        self._start("org.apache.spark.deploy.worker.Worker", *worker, *work, self.url)
        self._wait_log("Worker", "Successfully registered")
        return self

    def __exit__(self, *failure: object) -> None:
        for process in reversed(self._started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, name: str, *args: str) -> None:
        home = Path(pyspark.__file__).parent
        options = SHORT_LIVED.split()
        with self._log(name.rpartition(".")[2]).open("wb") as log:
            self._started.append(
                subprocess.Popen(
                    ["java", "-Xmx256m", *options, "-cp", f"{home}/jars/*", name, *args],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={
                        **without_python_path(),
                        "SPARK_HOME": str(home),
                        "SPARK_LOCAL_IP": "127.0.0.1",
                        "SPARK_SCALA_VERSION": "2.13",  # as Spark's own scripts set it
                    },
                )
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait_log(self, name: str, words: str) -> None:
        late = threading.Event()
        timer = threading.Timer(DEADLINE_S, late.set)
        timer.start()
        try:
            while words not in self._log(name).read_text():
                assert not late.wait(0.1), self._log(name).read_text()[-3000:]
        finally:
            timer.cancel()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def python_without_tidemill(folder: Path) -> Path:
    """An interpreter with the libraries of this environment, but without this project."""
    libraries = sysconfig.get_paths()["purelib"]
    script = folder / "python-without-tidemill"
    script.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH="$PYTHONPATH:{libraries}" exec {sys.base_prefix}/bin/python3 -S "$@"\n'
    )
    script.chmod(0o755)
    return script


def without_python_path() -> dict[str, str]:
    """The environment of a machine without this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
