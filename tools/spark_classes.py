"""Writes the class archive with which Spark's JVM starts sooner; `make setup-spark` runs it.

    .venv/bin/python tools/spark_classes.py

The archive has the classes that one run of the pipeline `logs` loads, against a broker in this
process. Spark runs without it, only slower: so what goes wrong here is one line, not a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

from pyspark import SparkContext

from tidemill.cli.demo.shop_day import DemoLog
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.clock import SystemClock
from tidemill.core.errors import TidemillError
from tidemill.core.net import AsyncioNet
from tidemill.core.rng import SeededRng
from tidemill.spark.jvm_options import OPTIONS_KEY, class_archive
from tidemill.spark.options.option_values import parse_bootstrap
from tidemill.spark.pipelines.catalogue import pipeline_kind
from tidemill.spark.pipelines.framework.config_file import configure
from tidemill.spark.pipelines.framework.execution import execute
from tidemill.spark.pipelines.framework.progress import StageProgress
from tidemill.testing.embedded import broker

__all__ = ["main"]

TOPIC: Final = "logs"
LINES: Final = 600
"""One a second: ten windows, most of which are finished at the end."""
DUMP_WITHIN_S: Final = 300.0
CHECK_WITHIN_S: Final = 30.0


def main() -> None:
    archive = class_archive()
    archive.unlink(missing_ok=True)
    if _java() is None:
        return  # tools/setup_env has said so
    # In the same folder: an incomplete archive crashes the JVM, so it appears by a rename.
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        try:
            _run_pipeline(Path(folder), made)
            _check(made)
            made.rename(archive)
        except (OSError, TidemillError, subprocess.SubprocessError) as error:
            print(f"setup: no class archive, Spark starts slower: {error}", file=sys.stderr)


def _java() -> str | None:
    """The one that Spark's scripts would take."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None)


def _run_pipeline(folder: Path, archive: Path) -> None:
    """Run `logs` over some lines; its JVM writes the archive when it ends."""
    with broker(num_partitions=1) as running:
        asyncio.run(_send_lines(running.bootstrap))
        values = {
            "bootstrap": running.bootstrap,
            "input.topic": TOPIC,
            "output.dir": str(folder / "output"),
            "checkpoint.dir": str(folder / "checkpoints"),
            OPTIONS_KEY: f'-XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={archive}"',
        }
        configured = configure(pipeline_kind("logs"), values)
        execute(configured, _NoScreen(), SystemClock(), once=True, verbose=False)
    _end_jvm()


async def _send_lines(bootstrap: str) -> None:
    log, clock = DemoLog(SeededRng(1)), SystemClock()
    began_ms = clock.wall_ms() - LINES * 1000
    endpoints = parse_bootstrap(bootstrap, "bootstrap")
    async with ClusterClient(AsyncioNet(), endpoints, client_id="setup") as cluster:
        await Admin(cluster).create_topic(TOPIC)
        async with Producer(cluster, clock) as producer:
            for index in range(LINES):
                line = log.line(began_ms + index * 1000, index / LINES)
                await producer.send(TOPIC, line.value, key=line.key)
            await producer.flush()


def _end_jvm() -> None:
    """The JVM ends when its standard input does."""
    gateway = SparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc  # type: ignore[union-attr]  # it has run
    with contextlib.suppress(BrokenPipeError):
        process.communicate(timeout=DUMP_WITHIN_S)


def _check(archive: Path) -> None:
    """A JVM must come up with it; SubprocessError if not."""
    command = [str(_java()), f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off", "-version"]
    subprocess.run(
        command, check=True, capture_output=True, timeout=CHECK_WITHIN_S, cwd=archive.parent
    )
    archive.stat()  # the JVM comes up without it, too


@final
class _NoScreen:
    """The listener of a run that nobody watches."""

    def show(self, line: str) -> None: ...

    def started(self, stages: Sequence[str]) -> None: ...

    def progressed(self, stages: Sequence[StageProgress]) -> None: ...

    def failed(self, reason: str, pause_s: float) -> None: ...


if __name__ == "__main__":
    main()
