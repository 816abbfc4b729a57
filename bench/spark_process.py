"""A Spark under test as a process: it answers requests in lines of JSON."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bench import spark_connector
from bench.judgement import Sample
from bench.processes import MeasurementFailed

__all__ = ["CONNECTOR", "OURS", "SparkKind", "SparkProcess", "spark_process"]

SCRIPT = Path(__file__).with_name("spark_job.py")
ANSWER_SECONDS_MAX = 300.0
END_SECONDS_MAX = 30.0
_INHERITED = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Settings of the user's own Spark, which must not affect either process."""
_LAST_WORDS = re.compile(r"^(?:Caused by: )?[\w.$]*(?:Error|Exception)\b.*$", re.M)


@final
@dataclass(frozen=True, slots=True)
class SparkKind:
    """A source and sink, and the interpreter whose pyspark they run in."""

    format: str
    python: str
    class_path: str = ""


OURS = SparkKind("tidemill", sys.executable)
CONNECTOR = SparkKind("kafka", str(spark_connector.PYTHON), spark_connector.CLASS_PATH)


@final
class SparkProcess:
    """`spark_job.py` with one session, from its first request to `end`."""

    def __init__(self, kind: SparkKind, directory: Path) -> None:
        self.kind = kind
        self._log_file = directory / "spark.log"
        # -P: modules of the bench must not shadow others of the same name.
        command = [kind.python, "-P", str(SCRIPT), "--format", kind.format]
        command += ["--scratch", str(directory), "--class-path", kind.class_path]
        environment = {name: text for name, text in os.environ.items() if name not in _INHERITED}
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=directory,
                env=environment,
                bufsize=0,
                start_new_session=True,
            )

    def ask(self, action: str, **arguments: Any) -> Sample:  # noqa: ANN401 - any JSON value
        """Send one request; its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"action": action, **arguments}).encode() + b"\n")
        except BrokenPipeError:
            raise self._ended(action) from None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS_MAX)
        if not ready:
            raise self._failed(f"gave no answer to {action} within {ANSWER_SECONDS_MAX:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._ended(action)
        answer: dict[str, float] = json.loads(line)
        return answer

    def end(self) -> None:
        """End it cleanly, or by force with its JVM if that takes too long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()

    def _ended(self, action: str) -> MeasurementFailed:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS_MAX)  # its last lines come after its last answer
        return self._failed(f"ended at {action}")

    def _failed(self, what: str) -> MeasurementFailed:
        text = self._log_file.read_text(errors="replace")
        said = _LAST_WORDS.findall(text) or text.split("\n")[-1:]
        return MeasurementFailed(f"Spark ({self.kind.format}) {what}: {said[-1][:500]}")


@contextmanager
def spark_process(kind: SparkKind, scratch: Path) -> Iterator[SparkProcess]:
    """A Spark for one row, with its own directory under `scratch`."""
    directory = Path(tempfile.mkdtemp(prefix="spark-", dir=scratch)).resolve()
    spark = SparkProcess(kind, directory)
    try:
        yield spark
    finally:
        spark.end()
