"""`tidemill produce`: lines from standard input become records."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import final

import click

from tidemill.cli.holding.due_time import parse_delay
from tidemill.cli.lines import read_lines
from tidemill.cli.session import bootstrap_option, run_client
from tidemill.cli.text import escape
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config.keys import parse_assignments
from tidemill.core.errors import UserError
from tidemill.wire.compression import CODEC_IDS
from tidemill.wire.records import Header

__all__ = ["produce"]

_ACKS = {"0": 0, "1": 1, "all": -1}
_PROGRESS_EVERY_S = 0.25


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _LineFormat:
    """How a line becomes a record."""

    topic: str
    partition: int | None
    key_separator: bytes | None
    headers: tuple[Header, ...]

    def split(self, line: bytes) -> tuple[bytes | None, bytes]:
        """Key and value; a line without the separator has no key."""
        if self.key_separator is None:
            return None, line
        key, found, value = line.partition(self.key_separator)
        return (key, value) if found else (None, line)


@final
class _Progress:
    """Counts the records on standard error if it is a terminal, and prints the total at the end."""

    def __init__(self, clock: Clock, topic: str) -> None:
        self._clock = clock
        self._topic = escape(topic)
        self._started = clock.monotonic()
        self._shown_at = self._started
        self._is_shown = sys.stderr.isatty() and not sys.stdin.isatty()

    def tick(self, producer: Producer) -> None:
        if self._is_shown and self._clock.monotonic() - self._shown_at >= _PROGRESS_EVERY_S:
            self._shown_at = self._clock.monotonic()
            click.echo(f"\r{producer.records_acked:,} records", err=True, nl=False)

    def close(self, producer: Producer) -> None:
        if self._is_shown:
            click.echo("\r", err=True, nl=False)
        took_s = max(self._clock.monotonic() - self._started, 1e-9)
        acked, failed = producer.records_acked, producer.records_failed
        text = (
            f"sent {acked:,} records to {self._topic} in {took_s:.1f} s ({acked / took_s:,.0f}/s)"
        )
        click.echo(f"{text}, {failed:,} failed" if failed else text, err=True)


@click.command()
@click.argument("topic")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="Text between key and value; without it lines have no key.",
)
@click.option(
    "--header", "headers", metavar="KEY=VALUE", multiple=True, help="Add a header; repeatable."
)
@click.option("--delay", metavar="LENGTH", help="Deliver after 10m, 1h30m, 2d, ...")
@click.option("--deliver-at", metavar="TIME", help="Deliver at an ISO 8601 time; local if bare.")
@click.option("--schedule", metavar="CRON", help="Deliver whenever a cron line says; needs --id.")
@click.option("--id", "message_id", metavar="ID", help="To find what is held, cancel or move it.")
@click.option("--partition", type=click.IntRange(min=0), help="Send all records to this partition.")
@click.option(
    "--acks",
    type=click.Choice(list(_ACKS)),
    help="Replicas that must store a record.  [default: all]",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compression of the batches.",
)
@click.option("--idempotent", is_flag=True, help="Retries store nothing twice; implies acks=all.")
@bootstrap_option
def produce(
    topic: str,
    key_separator: str | None,
    headers: tuple[str, ...],
    delay: str | None,
    deliver_at: str | None,
    schedule: str | None,
    message_id: str | None,
    partition: int | None,
    acks: str | None,
    compression: str,
    idempotent: bool,
    bootstrap: str,
) -> None:
    """Send each line of standard input to TOPIC as one record, delivered now or later."""
    if idempotent and acks not in {None, "all"}:
        raise click.UsageError("--idempotent needs --acks all")
    if key_separator == "":
        raise UserError("--key-separator must not be empty")
    pairs = parse_assignments(headers, source="--header")
    requests = parse_delay(delay, deliver_at, schedule, message_id)
    line_format = _LineFormat(
        topic=topic,
        partition=partition,
        key_separator=key_separator.encode() if key_separator is not None else None,
        headers=(*((name, value.encode()) for name, value in pairs.items()), *requests),
    )
    clock = SystemClock()

    async def work(cluster: ClusterClient) -> None:
        producer = Producer(
            cluster,
            clock,
            acks=_ACKS[acks or "all"],
            idempotent=idempotent,
            codec=CODEC_IDS[compression],
        )
        progress = _Progress(clock, topic)
        try:
            async with producer:
                await _send_lines(producer, line_format, progress)
        finally:
            progress.close(producer)

    run_client(bootstrap, work)


async def _send_lines(producer: Producer, line_format: _LineFormat, progress: _Progress) -> None:
    async for line in read_lines(sys.stdin.buffer):
        key, value = line_format.split(line)
        await producer.send(
            line_format.topic,
            value,
            key=key,
            headers=line_format.headers,
            partition=line_format.partition,
        )
        progress.tick(producer)
