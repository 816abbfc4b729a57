"""The demo with Spark: broker, traffic and the pipeline `logs`, each in its own process.

The log plays twenty times faster than real time. A minute of it ends every three seconds, so the
table grows while the user watches; it shows the records of the pipeline's result topic. At the end,
every line sent must be an event or a dead letter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import click

from tidemill.cli.demo.minute_table import GrowingTable, growing_table
from tidemill.cli.demo.own_broker import own_broker
from tidemill.cli.demo.shop_day import DemoLog, intensity
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.consuming.consumer import EARLIEST, Consumer
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import TidemillError
from tidemill.core.net import AsyncioNet
from tidemill.core.rng import SeededRng
from tidemill.spark.pipelines.logs.minutes import Minute, count_events, minute_from_json
from tidemill.testing.broker_process import TIDEMILL
from tidemill.testing.child_process import ChildProcess

__all__ = ["PipelineResult", "result_text", "run_pipeline"]

TOPIC = "web-logs"
MINUTES_TOPIC = "web-logs.minutes"
DEAD_TOPIC = "web-logs.dead"
PARTITIONS = 4
SEED = 20_261
SPEED = 20
"""Seconds of the log that are played in one second of the demo."""

_LATE_S = 20
_SPARK_START_S = 90.0
_SPARK_STOP_S = 40.0
_DRAIN_S = 60.0
_POLL_S = 0.05
_BURST_LINES = 2_000
_WINDOW_MS = 60_000


@final
@dataclass(frozen=True, slots=True)
class PipelineResult:
    """What the demo counted."""

    sent: int
    events: int
    dead: int
    windows: int
    seconds: float
    report: str


def result_text(result: PipelineResult, directory: Path) -> str:
    """The result, and commands to look further."""
    program = Path(sys.executable).parent / "tidemill"
    tidemill = str(program) if program.exists() else "tidemill"
    events = directory / "logs-output" / "events"
    look = f"import pyarrow.dataset as d; print(d.dataset('{events}').head(5).to_pylist())"
    return (
        f"sent {result.sent:,} lines; {result.events:,} became events, "
        f"{result.dead:,} broken ones became dead letters: every line is accounted for "
        f"({result.seconds:.0f} s in total)\n"
        f"report of {result.windows} minutes: {result.report}\n\n"
        "look further:\n"
        f"  {tidemill} pipeline report {directory / 'logs.toml'}\n"
        f'  {sys.executable} -c "{look}"\n'
        f"  {tidemill} pipeline init logs     # your own: edit logs.toml, start `{tidemill} up`\n"
        f"  rm -r {directory}     # remove the results"
    )


async def run_pipeline(
    directory: Path, *, seconds: float, rate: int, verbose: bool
) -> PipelineResult:
    """The whole demo; results stay in `directory`, which must exist."""
    clock = SystemClock()
    started = clock.monotonic()
    async with own_broker() as endpoint, ClusterClient(AsyncioNet(), [endpoint]) as cluster:
        for topic, partitions in ((TOPIC, PARTITIONS), (MINUTES_TOPIC, 1), (DEAD_TOPIC, 1)):
            await Admin(cluster).create_topic(topic, partitions=partitions)
        click.echo(f"broker on {endpoint}; starting Spark (about ten seconds)", err=True)
        with _pipeline(endpoint, directory, verbose=verbose) as process:
            log = _PipelineLog(process, shown=verbose)
            await _wait_running(process, log, clock)
            click.echo(
                f"Spark is running. A log of {seconds * SPEED / 60:.0f} minutes is played in "
                f"{seconds:.0f} s: {SPEED} times faster than real time.",
                err=True,
            )
            playback = _Playback(
                cluster, directory, process, log, clock, seconds=seconds, rate=rate
            )
            with growing_table() as table:
                sent, events, dead = await playback.play(table)
        if process.exit_code != 0:
            raise TidemillError(f"the pipeline ended with {process.exit_code}: {log.last_line()}")
    report = directory / "logs-output" / "report.html"
    took_s = clock.monotonic() - started
    return PipelineResult(sent, events, dead, playback.windows, took_s, str(report))


@final
class _Playback:
    """Sends the traffic and collects finished minutes until every line is accounted for."""

    def __init__(
        self,
        cluster: ClusterClient,
        directory: Path,
        process: ChildProcess,
        log: _PipelineLog,
        clock: Clock,
        *,
        seconds: float,
        rate: int,
    ) -> None:
        self._cluster = cluster
        self._events = str(directory / "logs-output" / "events")
        self._process = process
        self._pipeline_log = log
        self._clock = clock
        self._seconds = seconds
        self._rate = rate
        self._log = DemoLog(SeededRng(SEED))
        self._began_ms = clock.wall_ms() - int(seconds * SPEED * 1000)
        self._sent = 0
        self._due = 0.0
        self.windows = 0

    async def play(self, table: GrowingTable) -> tuple[int, int, int]:
        """Send and read for the whole time; the counts of lines sent, events and dead letters."""
        minutes = Consumer(self._cluster, max_wait_ms=20)
        await minutes.assign(MINUTES_TOPIC, EARLIEST)
        async with Producer(self._cluster, self._clock) as producer:
            started = before = self._clock.monotonic()
            while (now := self._clock.monotonic()) - started < self._seconds:
                await self._send(producer, (now - started) / self._seconds, now - before)
                before = now
                await self._take_minutes(minutes, table)
                table.show_status(f"{self._sent:,} lines sent")
            await producer.flush()
        return await self._drain(minutes, table)

    async def _send(self, producer: Producer, share: float, elapsed_s: float) -> None:
        self._due = min(self._due + elapsed_s * self._rate * intensity(share), _BURST_LINES)
        count = int(self._due)
        self._due -= count
        event_ms = self._began_ms + int(share * self._seconds * SPEED * 1000)
        for _ in range(count):
            key, value, _ = self._log.line(event_ms, share)
            await producer.send(TOPIC, value, key=key)
        self._sent += count

    async def _take_minutes(self, minutes: Consumer, table: GrowingTable) -> None:
        self._pipeline_log.show_new()
        if self._process.exit_code is not None:
            raise TidemillError(f"the pipeline has ended: {self._pipeline_log.last_line()}")
        for fetched in await minutes.poll(_POLL_S):
            for record in fetched.records:
                table.add(_minute(record.value))
                self.windows += 1

    async def _drain(self, minutes: Consumer, table: GrowingTable) -> tuple[int, int, int]:
        """Wait until every line is accounted for and every window that can close has closed."""
        last_ms = self._began_ms + int(self._seconds * SPEED * 1000) - _LATE_S * 1000
        expected = last_ms // _WINDOW_MS - self._began_ms // _WINDOW_MS
        deadline = self._clock.monotonic() + _DRAIN_S
        while True:
            await self._take_minutes(minutes, table)
            events, dead = count_events(self._events), await self._dead()
            table.show_status(f"{self._sent:,} lines sent, {events + dead:,} processed")
            if events + dead == self._sent and self.windows >= expected - 1:
                return self._sent, events, dead
            if self._clock.monotonic() > deadline:
                raise TidemillError(
                    f"of {self._sent} lines {events} became events and {dead} dead letters; "
                    f"{self.windows} of {expected} windows: {self._pipeline_log.last_line()}"
                )

    async def _dead(self) -> int:
        latest = -1
        ends = await Admin(self._cluster).list_offsets(DEAD_TOPIC, latest)
        return sum(end.offset for end in ends.values())


def _minute(value: bytes | memoryview | None) -> Minute:
    return minute_from_json(json.loads(bytes(value or b"{}")))


@contextlib.contextmanager
def _pipeline(broker: Endpoint, directory: Path, *, verbose: bool) -> Iterator[ChildProcess]:
    """`tidemill pipeline run`, as a user would start it; ended by SIGTERM."""
    config = directory / "logs.toml"
    config.write_text(_config(broker), encoding="utf-8")
    command = [*TIDEMILL, "pipeline", "run", str(config), *(["--verbose"] if verbose else [])]
    # In a session of its own: Ctrl-C reaches only this process, which ends the pipeline.
    process = ChildProcess(command, directory / "pipeline.log", new_session=True)
    process.spawn()
    try:
        yield process
    finally:
        # Blocks the loop, on which nothing else runs by now.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.stop(_SPARK_STOP_S)


def _config(broker: Endpoint) -> str:
    """Its paths begin at the folder of the file."""
    values = {
        "pipeline": "logs",
        "bootstrap": str(broker),
        "input.topic": TOPIC,
        "minutes.topic": MINUTES_TOPIC,
        "dead.topic": DEAD_TOPIC,
        "output.dir": "./logs-output",
        "checkpoint.dir": "./checkpoints",
    }
    # The run is too short to repay the work of Java's second compiler.
    values["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1"
    numbers = {"trigger.s": 2, "window.late.s": _LATE_S, "state.partitions": 2}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in (values | numbers).items()]
    return "# The demo's settings; `tidemill pipeline describe logs` explains them.\n" + "".join(
        lines
    )


async def _wait_running(process: ChildProcess, log: _PipelineLog, clock: Clock) -> None:
    deadline = clock.monotonic() + _SPARK_START_S
    while "logs: running" not in process.output():
        log.show_new()
        if process.exit_code is not None or clock.monotonic() > deadline:
            raise TidemillError(f"the pipeline did not start: {log.last_line()}")
        await asyncio.sleep(_POLL_S)


@final
class _PipelineLog:
    """The output of the pipeline's process; `shown` copies it to standard error as it grows."""

    def __init__(self, process: ChildProcess, *, shown: bool) -> None:
        self._process = process
        self._shown = shown
        self._shown_chars = 0

    def show_new(self) -> None:
        if self._shown:
            text = self._process.output()
            click.echo(text[self._shown_chars :], err=True, nl=False)
            self._shown_chars = len(text)

    def last_line(self) -> str:
        return f"{self._process.last_line()} (see {self._process.log_path})"
