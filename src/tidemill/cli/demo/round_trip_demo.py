"""The demo without Spark: log lines go through a broker and are read back at the same time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import click

from tidemill.cli.demo.access_log import AccessLog
from tidemill.cli.demo.own_broker import own_broker
from tidemill.cli.demo.traffic import Traffic, open_traffic
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import TidemillError
from tidemill.core.net import AsyncioNet
from tidemill.core.rng import SeededRng

__all__ = ["RoundTrip", "round_trip"]

TOPIC = "web-logs"
PARTITIONS = 4
SEED = 20_261
_DRAIN_S = 5.0
_BURST_LINES = 2_000
"""Lines sent between two polls of the reader."""


@final
@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The measured values."""

    client: str
    sent: int
    read: int
    megabytes: float
    seconds: float
    latency_p50_ms: int
    latency_p99_ms: int


async def round_trip(seconds: float, rate: int) -> RoundTrip:
    """Send log lines for some seconds and, at the same time, read them back in order."""
    clock = SystemClock()
    async with own_broker() as endpoint:
        async with ClusterClient(AsyncioNet(), [endpoint]) as cluster:
            await Admin(cluster).create_topic(TOPIC, partitions=PARTITIONS)
        traffic = await open_traffic(endpoint, TOPIC, PARTITIONS, clock)
        click.echo(f"broker on {endpoint}, topic {TOPIC}, {traffic.name}", err=True)
        try:
            return await _run(traffic, clock, seconds=seconds, rate=rate)
        finally:
            await traffic.close()


async def _run(traffic: Traffic, clock: Clock, *, seconds: float, rate: int) -> RoundTrip:
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
    return RoundTrip(
        client=traffic.name,
        sent=sent,
        read=traffic.reading.records,
        megabytes=traffic.reading.size_bytes / 1e6,
        seconds=took_s,
        latency_p50_ms=latencies[len(latencies) // 2],
        latency_p99_ms=latencies[len(latencies) * 99 // 100],
    )


async def _drain(traffic: Traffic, clock: Clock, sent: int) -> None:
    """Read until every acknowledged line has arrived."""
    deadline = clock.monotonic() + _DRAIN_S
    while traffic.reading.records < sent:
        if clock.monotonic() > deadline:
            missing = sent - traffic.reading.records
            raise TidemillError(f"{missing} acknowledged lines did not arrive")
        await traffic.pump()


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("log lines", total=total)
        yield lambda done: progress.update(task, completed=done)
