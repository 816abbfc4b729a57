"""`tidemill demo`: a broker of its own, a stream of web-server log lines, a reader beside it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import final

import click

from tidemill.cli.access_log import AccessLog
from tidemill.cli.demo_traffic import Traffic, open_traffic
from tidemill.cli.text import print_json
from tidemill.client.admin import Admin
from tidemill.client.cluster import Cluster
from tidemill.core.broker_config import Endpoint, parse_endpoint
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import TidemillError
from tidemill.core.net import AsyncioNet
from tidemill.core.rng import SeededRng

__all__ = ["demo"]

TOPIC = "web-logs"
PARTITIONS = 4
SEED = 20_261
_START_S = 15.0
_STOP_S = 12.0
_DRAIN_S = 5.0
_BURST_LINES = 2_000
"""Lines between two looks at what came back."""


@final
@dataclass(frozen=True, slots=True)
class _Result:
    client: str
    sent: int
    read: int
    megabytes: float
    seconds: float
    latency_p50_ms: int
    latency_p99_ms: int


@click.command()
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True)
@click.option("--rate", type=click.IntRange(1, 1_000_000), default=20_000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def demo(seconds: float, rate: int, as_json: bool) -> None:
    """Start a broker, send web-server log lines through it, and count them.

    Everything happens in a temporary directory, on a free port, and is gone afterwards.
    """
    result = asyncio.run(_demo(seconds, rate))
    if as_json:
        names = type(result).__slots__
        print_json({name: getattr(result, name) for name in names})
        return
    click.echo(
        f"sent {result.sent:,} log lines ({result.megabytes:.1f} MB) and read {result.read:,} back "
        f"in order, in {result.seconds:.1f} s: {result.sent / result.seconds:,.0f} lines/s, "
        f"{result.latency_p50_ms} ms from sender to reader (p99 {result.latency_p99_ms} ms)"
    )


async def _demo(seconds: float, rate: int) -> _Result:
    clock = SystemClock()
    async with _broker() as endpoint:
        async with Cluster(AsyncioNet(), [endpoint]) as cluster:
            await Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS)
        traffic = await open_traffic(endpoint, TOPIC, PARTITIONS, clock)
        click.echo(f"broker on {endpoint}, topic {TOPIC}, {traffic.name}", err=True)
        try:
            return await _run(traffic, clock, seconds=seconds, rate=rate)
        finally:
            await traffic.close()


async def _run(traffic: Traffic, clock: Clock, *, seconds: float, rate: int) -> _Result:
    log = AccessLog(SeededRng(SEED))
    sent = 0
    started = clock.monotonic()
    with _progress(int(seconds * rate)) as show:
        while (elapsed := clock.monotonic() - started) < seconds:
            due = min(int(elapsed * rate) - sent, _BURST_LINES)
            for _ in range(due):
                await traffic.send(*log.line(clock.wall_ms()))
            sent += max(due, 0)
            await traffic.pump()
            show(traffic.reading.records)
        await traffic.flush()
        await _drain(traffic, clock, sent)
        show(traffic.reading.records)
    took_s = clock.monotonic() - started
    latencies = sorted(traffic.reading.latencies_ms) or [0]
    return _Result(
        client=traffic.name,
        sent=sent,
        read=traffic.reading.records,
        megabytes=traffic.reading.size_bytes / 1e6,
        seconds=took_s,
        latency_p50_ms=latencies[len(latencies) // 2],
        latency_p99_ms=latencies[len(latencies) * 99 // 100],
    )


async def _drain(traffic: Traffic, clock: Clock, sent: int) -> None:
    """Read until everything that was acknowledged has come back."""
    deadline = clock.monotonic() + _DRAIN_S
    while traffic.reading.records < sent:
        if clock.monotonic() > deadline:
            missing = sent - traffic.reading.records
            raise TidemillError(f"{missing} acknowledged lines did not come back")
        await traffic.pump()


@contextlib.asynccontextmanager
async def _broker() -> AsyncIterator[Endpoint]:
    """A broker in a process of its own, on a free port, in a directory that goes away with it."""
    with tempfile.TemporaryDirectory(prefix="tidemill-demo-") as directory:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidemill.cli.main", "up"),
            *("--data-dir", directory, "--listen", "127.0.0.1:0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield await _wait_ready(process)
        finally:
            await _stop(process)


async def _wait_ready(process: asyncio.subprocess.Process) -> Endpoint:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_S):
            line = (await process.stdout.readline()).decode()
    except TimeoutError:
        raise TidemillError(f"the broker was not ready after {_START_S:g} s") from None
    if not line.startswith("ready: "):
        raise TidemillError(f"the broker did not start: {await _last_words(process)}")
    return parse_endpoint(line.removeprefix("ready: ").strip(), key="ready")


async def _last_words(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    lines = (await process.stderr.read(65_536)).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing; try `tidemill up`"


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; nothing anywhere else."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("log lines", total=total)
        yield lambda done: progress.update(task, completed=done)
