"""`tidemill demo`: a whole application, end to end, on its own broker.

With Spark, the invented access log of a shop runs through the pipeline `logs`. Without Java or
Spark, the same kind of lines go through the broker and back.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from tidemill.cli.text import print_json

__all__ = ["demo"]

T = TypeVar("T")

_SPARK_SECONDS = 60.0
_SPARK_RATE = 1_500
_BROKER_SECONDS = 5.0
_BROKER_RATE = 20_000


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    help="How long to send lines.  [default: 60, without Spark 5]",
)
@click.option(
    "--rate",
    type=click.IntRange(1, 1_000_000),
    help="Lines per second.  [default: 1500, without Spark 20000]",
)
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the results.  [default: a new temporary directory]",
)
@click.option("--without-spark", is_flag=True, help="Run only the broker: lines in, lines out.")
@click.option("--verbose", is_flag=True, help="Also show what Spark and its JVM print.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def demo(
    seconds: float | None,
    rate: int | None,
    directory: Path | None,
    without_spark: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Start a broker, send web-server log lines through it, and count them.

    The pipeline `logs` runs on Spark and reads from the broker; its results stay in a directory.
    The broker, its data and all processes are removed at the end.
    """
    missing = None if without_spark else _missing()
    if without_spark or missing is not None:
        if missing is not None:
            click.echo(f"{missing}; the demo continues without Spark", err=True)
        _without_spark(seconds or _BROKER_SECONDS, rate or _BROKER_RATE, as_json=as_json)
        return
    _with_spark(
        seconds or _SPARK_SECONDS,
        rate or _SPARK_RATE,
        directory,
        verbose=verbose,
        as_json=as_json,
    )


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; SIGTERM ends it like Ctrl-C does, so that no process stays behind."""

    async def until_terminated() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(until_terminated())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _missing() -> str | None:
    from tidemill.cli.commands.pipeline import missing_for_spark

    return missing_for_spark()


def _with_spark(
    seconds: float, rate: int, directory: Path | None, *, verbose: bool, as_json: bool
) -> None:
    from tidemill.cli.demo.pipeline_demo import result_text, run_pipeline

    kept = directory or Path(tempfile.mkdtemp(prefix="tidemill-demo-"))
    kept.mkdir(parents=True, exist_ok=True)
    result = _run(run_pipeline(kept, seconds=seconds, rate=rate, verbose=verbose))
    if as_json:
        print_json({name: getattr(result, name) for name in type(result).__slots__})
        return
    click.echo(result_text(result, kept))


def _without_spark(seconds: float, rate: int, *, as_json: bool) -> None:
    from tidemill.cli.demo.round_trip_demo import round_trip

    result = _run(round_trip(seconds, rate))
    if as_json:
        print_json({name: getattr(result, name) for name in type(result).__slots__})
        return
    click.echo(
        f"sent {result.sent:,} log lines ({result.megabytes:.1f} MB) and read {result.read:,} back "
        f"in order, in {result.seconds:.1f} s: {result.sent / result.seconds:,.0f} lines/s, "
        f"{result.latency_p50_ms} ms from sender to reader (p99 {result.latency_p99_ms} ms)"
    )
