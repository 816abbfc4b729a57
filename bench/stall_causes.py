"""Why the event loop is late: one broker under load, and beside it an event loop that does nothing.

    python -m bench.stall_causes [--seconds S] [--batch one|16k|1m] [--flush group|os]

Every millisecond each of the two loops notes how late it woke up and what its thread did
meanwhile: it worked or collected garbage on a core, it was ready and had no core, it wrote to the
page cache, or none of these. The rest is the interpreter's lock, or a machine that stood still; the
idle loop has no lock to wait for, so what it shows is the machine. Needs Linux with
/proc/thread-self/schedstat.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from bench.raw_driver import BATCHES, drive
from bench.topics import create_topics
from bench.wire_client import Address
from tidemill.broker import broker as broker_module
from tidemill.cli.main import main as tidemill
from tidemill.core.clock import Clock
from tidemill.core.loop.event_loop import new_event_loop
from tidemill.core.telemetry import Histogram
from tidemill.storage.files import disk as disk_module
from tidemill.testing.broker_process import BrokerProcess
from tidemill.testing.child_process import ChildProcess

__all__ = ["main"]

INTERVAL_S: Final = 0.001
STALL_S: Final = 0.005
"""Shorter lateness is not looked at."""
PARTITIONS: Final = 4
CONNECTIONS: Final = 4
SCHEDSTAT: Final = "/proc/thread-self/schedstat"
CAUSES: Final = ("working", "collecting", "no core", "writing", "other")


class _Usage(NamedTuple):
    """What the calling thread has done since it began, in seconds."""

    on_core_s: float
    ready_s: float
    collecting_s: float
    writing_s: float


@dataclass(slots=True)
class _Meter:
    """Times what happens between two looks of one loop, and keeps the long ones."""

    collecting_s: float = 0.0
    writing_s: float = 0.0
    looks: int = 0
    stalls: list[tuple[float, tuple[float, ...]]] = field(default_factory=list)
    _collecting_since: float = 0.0

    def usage(self) -> _Usage:
        on_core_ns, ready_ns, _ = Path(SCHEDSTAT).read_text().split()
        return _Usage(int(on_core_ns) / 1e9, int(ready_ns) / 1e9, self.collecting_s, self.writing_s)

    def collector(self, phase: str, _info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._collecting_since = now
        else:
            self.collecting_s += now - self._collecting_since

    def pwrite(self, *args: Any) -> int:  # noqa: ANN401 - os.pwrite's own
        started = time.perf_counter()
        try:
            return os.pwrite(*args)
        finally:
            self.writing_s += time.perf_counter() - started

    async def watch(self, _clock: Clock | None = None, _stalls: Histogram | None = None) -> None:
        """In the place of the broker's own watch."""
        gc.callbacks.append(self.collector)
        while True:
            before, due = self.usage(), time.perf_counter() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            late_s = time.perf_counter() - due
            self.looks += 1
            if late_s >= STALL_S:
                self.stalls.append((late_s, _causes(late_s, before, self.usage())))

    def report(self) -> str:
        return json.dumps({"looks": self.looks, "stalls": self.stalls})


def _causes(late_s: float, before: _Usage, after: _Usage) -> tuple[float, ...]:
    """The seconds of one stall by cause, in the order of CAUSES."""
    on_core_s, ready_s, collecting_s, writing_s = (
        b - a for a, b in zip(before, after, strict=True)
    )
    other_s = late_s - on_core_s - ready_s
    blocked_writing_s = min(writing_s, max(0.0, other_s))
    return (
        max(0.0, on_core_s - collecting_s),
        collecting_s,
        ready_s,
        blocked_writing_s,
        max(0.0, other_s - blocked_writing_s),
    )


class _TimedOs:
    """The module `os` with a `pwrite` that is timed."""

    def __init__(self, meter: _Meter) -> None:
        self.pwrite = meter.pwrite

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        return getattr(os, name)


def _serve(report: Path, arguments: list[str]) -> None:
    """A broker as `tidemill up` starts it, watched; writes its report when it stops."""
    meter = _Meter()
    with (
        mock.patch.object(broker_module, "watch_loop", meter.watch),
        mock.patch.object(disk_module, "os", _TimedOs(meter)),
    ):
        sys.argv[1:] = arguments
        try:
            tidemill()
        finally:
            report.write_text(meter.report())


async def _idle(meter: _Meter) -> None:
    """An event loop that only watches itself, until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    watching = asyncio.create_task(meter.watch())
    await stop.wait()
    watching.cancel()


def _show(name: str, report: Path) -> None:
    found = json.loads(report.read_text())
    stalls = sorted(found["stalls"], reverse=True)
    limit = STALL_S * 1e3
    print(f"{name}: {found['looks']} looks, {len(stalls)} later than {limit:.0f} ms")
    if not stalls:
        return
    total_s = sum(late for late, _ in stalls)
    shares = [sum(causes[i] for _, causes in stalls) / total_s for i in range(len(CAUSES))]
    print(
        "  share of all   " + "  ".join(f"{c} {s:.0%}" for c, s in zip(CAUSES, shares, strict=True))
    )
    for late_s, causes in stalls[:5]:
        parts = "  ".join(f"{c} {s * 1e3:.1f}" for c, s in zip(CAUSES, causes, strict=True))
        print(f"  {late_s * 1e3:7.1f} ms     {parts}")


def _measure(options: argparse.Namespace) -> None:
    command = (sys.executable, "-m", "bench.stall_causes")
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        served, idled = directory / "served.json", directory / "idled.json"
        idle = ChildProcess([*command, "--idle", str(idled)], directory / "idle.log")
        broker = BrokerProcess(directory / "data", command=(*command, "--serve", str(served)))
        idle.spawn()
        try:
            _drive(broker.start().bootstrap, options)
        finally:
            broker.stop()
            idle.stop()
        _show("broker", served)
        _show("idle loop", idled)


def _drive(bootstrap: str, options: argparse.Namespace) -> None:
    host, _, port = bootstrap.rpartition(":")
    address = Address(host, int(port))
    config = {"tidemill.flush": options.flush}
    create_topics(address, ["stalls"], partitions=PARTITIONS, config=config)
    result = drive(
        address,
        "stalls",
        BATCHES[options.batch],
        connections=CONNECTIONS,
        partitions=PARTITIONS,
        seconds=options.seconds,
        acks=-1,
    )
    print(f"{result.records_per_s:,.0f} records/s, acks=all, flush={options.flush}")


def main() -> None:
    match sys.argv[1:]:
        case ["--serve", report, *arguments]:
            _serve(Path(report), arguments)
        case ["--idle", report]:
            meter = _Meter()
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(_idle(meter))
            Path(report).write_text(meter.report())
        case _:
            _measure(_parser().parse_args())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench.stall_causes", description="Why the event loop of a loaded broker is late."
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--batch", choices=sorted(BATCHES), default="16k")
    parser.add_argument("--flush", choices=("group", "os"), default="group")
    parser.add_argument("--directory", default=None, help="where the data goes; default: /tmp")
    return parser


if __name__ == "__main__":
    main()
