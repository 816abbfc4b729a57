"""`tidemill up`: one broker in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemill.cli.process_tuning import freeze_start_up, raise_descriptor_limit, tune_process
from tidemill.core.config.broker_config import broker_config
from tidemill.core.errors import UserError
from tidemill.core.logs import LineFormatter
from tidemill.core.loop.event_loop import new_event_loop

if TYPE_CHECKING:
    from tidemill.broker import Broker

__all__ = ["up"]


@click.command(short_help="Start a broker.")
@click.option("--data-dir", metavar="DIR", help="Directory for all data.  [default: ./data]")
@click.option("--listen", metavar="HOST:PORT", help="Address to serve.  [default: 127.0.0.1:9092]")
@click.option("--advertise", metavar="HOST:PORT", help="Address that clients use, if not --listen.")
@click.option("--config", "config_file", metavar="FILE", help="File with key=value lines.")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set one key; repeatable."
)
@click.option("--brokers", metavar="N", type=int, default=1, hidden=True)
@click.option("--zookeeper", metavar="HOSTS", hidden=True)
def up(
    data_dir: str | None,
    listen: str | None,
    advertise: str | None,
    config_file: str | None,
    settings: tuple[str, ...],
    brokers: int,
    zookeeper: str | None,
) -> None:
    """Start a broker that speaks the Kafka protocol. Prints `ready: HOST:PORT` once it serves."""
    if brokers != 1:
        raise UserError(
            "--brokers is not available yet: each command runs one broker, and a cluster has one"
        )
    if zookeeper is not None:
        raise UserError("--zookeeper is not available yet: the data directory holds the metadata")
    named = {"data.dir": data_dir, "listeners": listen, "advertised.listeners": advertise}
    config = broker_config(
        file_text=_read(config_file) if config_file else "",
        file_name=config_file or "",
        flags=settings,
        values={key: value for key, value in named.items() if value is not None},
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    tune_process()
    from tidemill.broker import Broker

    broker = Broker(config, descriptors_max=raise_descriptor_limit())
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        failed = runner.run(_serve(broker))
    if failed:
        raise SystemExit(1)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror}") from error


async def _serve(broker: Broker) -> bool:
    """Run until a signal or a failure; whether the broker failed."""
    stop = asyncio.Event()
    broker.on_failure(stop.set)  # before the start: a part may fail at once
    endpoint = await broker.start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    click.echo(f"ready: {endpoint}")
    sys.stdout.flush()
    freeze_start_up()
    await stop.wait()
    await broker.stop()
    return broker.failed
