"""`tidemill consume`: prints the records of a topic."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import final

import click

from tidemill.cli.record_format import RecordFormat, record_facts
from tidemill.cli.session import bootstrap_option, run_client
from tidemill.cli.start_position import parse_start_position
from tidemill.client.consuming.consumer import Consumer, FetchedRecords
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.offset_lookup import LATEST_TIMESTAMP, list_offsets
from tidemill.core.clock import SystemClock
from tidemill.core.ids import TopicPartition
from tidemill.wire.records import Record

__all__ = ["consume"]

_POLL_S = 1.0

_RecordText = Callable[[FetchedRecords, Record], bytes]


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    default="beginning",
    show_default=True,
    help="beginning, end, an offset, an age such as -10m, or an ISO 8601 time.",
)
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True)
@click.option(
    "--format",
    "pattern",
    metavar="PATTERN",
    default="%v",
    show_default=True,
    help="%t topic, %p partition, %o offset, %T time in ms, %k key, %v value, %h headers.",
)
@click.option("--count", type=click.IntRange(min=0), help="Stop after this many records.")
@click.option(
    "--follow/--no-follow", default=True, help="Wait for new records at the end, or stop there."
)
@click.option(
    "--rack", default="", help="Read from replicas in this rack, where the cluster allows it."
)
@click.option("--raw", is_flag=True, help="Print values unchanged, control characters included.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per record.")
@bootstrap_option
def consume(
    topic: str,
    start: str,
    partitions: tuple[int, ...],
    pattern: str,
    count: int | None,
    follow: bool,
    rack: str,
    raw: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Print the records of TOPIC. Control characters are shown escaped, unless --raw."""
    position = parse_start_position(start, now_ms=SystemClock().wall_ms())
    printer = _Printer(_record_text(pattern, raw=raw, as_json=as_json), count)

    async def work(cluster: ClusterClient) -> None:
        consumer = Consumer(cluster, rack=rack)
        await consumer.assign(topic, position, partitions or None)
        ends = None if follow else await _ends(cluster, consumer)
        while not printer.done and not _is_past(consumer, ends):
            for fetched in await consumer.poll(_POLL_S):
                printer.print(fetched, ends)

    run_client(bootstrap, work)


async def _ends(cluster: ClusterClient, consumer: Consumer) -> dict[TopicPartition, int]:
    """The end of each partition when the command began; --no-follow stops there."""
    asked = dict.fromkeys(consumer.positions, LATEST_TIMESTAMP)
    return {p: found.offset for p, found in (await list_offsets(cluster, asked)).items()}


def _is_past(consumer: Consumer, ends: dict[TopicPartition, int] | None) -> bool:
    if ends is None:
        return False
    return all(consumer.positions[partition] >= end for partition, end in ends.items())


def _record_text(pattern: str, *, raw: bool, as_json: bool) -> _RecordText:
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")
    if raw:
        return lambda fetched, record: record.value or b""
    if as_json:
        return lambda fetched, record: json.dumps(record_facts(fetched, record)).encode()
    form = RecordFormat(pattern)
    return lambda fetched, record: form.render(fetched, record).encode()


@final
class _Printer:
    """Writes records to standard output, at most `--count` of them."""

    def __init__(self, show: _RecordText, count: int | None) -> None:
        self._show = show
        self._left = count

    @property
    def done(self) -> bool:
        return self._left == 0

    def print(self, fetched: FetchedRecords, ends: dict[TopicPartition, int] | None) -> None:
        records = fetched.records
        if ends is not None:
            end = ends[TopicPartition(fetched.topic, fetched.partition)]
            records = [record for record in records if record.offset < end]
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        if records:
            lines = [self._show(fetched, record) for record in records]
            sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
            sys.stdout.buffer.flush()
