"""What a topic holds, as JSON for programs, and as a table and a small plot for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from heapq import heappush, heapreplace
from typing import Any, final

import click

from tidemill.cli.record_format import bytes_fact
from tidemill.cli.text import escape, escape_bytes, print_table
from tidemill.client.holding.hold_admin import ListedHold
from tidemill.core.config.durations import UNIT_MS, parse_duration_ms, short_duration

__all__ = ["HoldSummary", "hold_facts", "print_hold", "print_holds"]

_COLUMNS = ("DUE", "IN", "TICKET", "ID", "SCHEDULE", "KEY", "BYTES")
_SPANS = ("0s", "1m", "10m", "1h", "6h", "1d", "7d", "30d")
_SPANS_MS = tuple(map(parse_duration_ms, _SPANS))
_BAR_CHARS = 40
_KEY_CHARS_MAX = 24


@final
class HoldSummary:
    """Counts what is held by when it is due, and keeps the first ones; its size is bounded."""

    def __init__(self, now_ms: int, first_max: int) -> None:
        self.now_ms = now_ms
        self.count = 0
        self.size_bytes = 0
        self._first_max = first_max
        self._first: list[tuple[int, int, int, int, ListedHold]] = []
        """A heap of the earliest ones, the latest of them on top."""
        self._due = [0] * (len(_SPANS_MS) + 1)

    def add(self, held: ListedHold) -> None:
        self.count += 1
        self.size_bytes += held.size_bytes
        wait_ms = held.due_ms - self.now_ms
        self._due[sum(wait_ms > span_ms for span_ms in _SPANS_MS)] += 1
        # A hold that is carried while we read may come twice: the count keeps entries apart.
        entry = (-held.due_ms, -held.partition, -held.ticket, -self.count, held)
        if len(self._first) < self._first_max:
            heappush(self._first, entry)
        elif self._first and entry > self._first[0]:
            heapreplace(self._first, entry)

    def first(self) -> list[ListedHold]:
        """The ones that are due first, in that order."""
        return [entry[-1] for entry in sorted(self._first, reverse=True)]

    def due(self) -> list[tuple[str, int]]:
        """How many are due in spans that follow each other, up to the last one that has any."""
        names = ["overdue", *(f"in {span}" for span in _SPANS[1:]), "later"]
        used = max((at for at, count in enumerate(self._due) if count), default=-1)
        return list(zip(names, self._due, strict=True))[: used + 1]


def hold_facts(held: ListedHold) -> dict[str, Any]:
    """A held record for JSON."""
    return {
        "partition": held.partition,
        "ticket": held.ticket,
        "offset": held.record.offset,
        "due_ms": held.due_ms,
        "id": held.message_id,
        "schedule": held.schedule,
        **bytes_fact("key", held.record.key),
        "size_bytes": held.size_bytes,
    }


def print_holds(topic: str, summary: HoldSummary) -> None:
    """The first ones as a table, and all of them as a plot."""
    if not summary.count:
        click.echo(f"{topic} holds nothing")
        return
    first = summary.first()
    wait = _wait(first[0].due_ms, summary.now_ms) if first else "-"
    click.echo(f"{topic} holds {summary.count:,}; the next is due in {wait}\n")
    print_table(_COLUMNS, [_row(held, summary.now_ms) for held in first])
    click.echo()
    for line in _plot(summary.due()):
        click.echo(line)


def print_hold(held: ListedHold, now_ms: int) -> None:
    """One held record, a line for each fact."""
    facts = {
        "due": f"{_time(held.due_ms)}, in {_wait(held.due_ms, now_ms)}",
        "ticket": f"{held.partition}:{held.ticket}",
        "id": held.message_id,
        "schedule": held.schedule,
        "sent": _time(held.record.timestamp),
        "key": escape_bytes(held.record.key, null="-"),
        "value": escape_bytes(held.record.value, null="-"),
    }
    headers = [(f"header {name}", escape_bytes(value)) for name, value in held.record.headers]
    for name, text in [*facts.items(), *headers]:
        if text is not None:
            click.echo(escape(f"{name:<10} {text}"))


def _row(held: ListedHold, now_ms: int) -> tuple[object, ...]:
    key = escape_bytes(held.record.key, null="-")
    return (
        _time(held.due_ms),
        _wait(held.due_ms, now_ms),
        f"{held.partition}:{held.ticket}",
        held.message_id,
        held.schedule,
        key if len(key) <= _KEY_CHARS_MAX else f"{key[: _KEY_CHARS_MAX - 3]}...",
        held.size_bytes,
    )


def _plot(due: list[tuple[str, int]]) -> Iterator[str]:
    most = max(count for _, count in due)
    widths = max(len(name) for name, _ in due), len(f"{most:,}")
    for name, count in due:
        bar = "#" * -(-count * _BAR_CHARS // most)
        yield f"{name:<{widths[0]}}  {count:>{widths[1]},}  {bar}".rstrip()


def _time(time_ms: int) -> str:
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return "never"
    return time.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _wait(due_ms: int, now_ms: int) -> str:
    wait_ms = max(0, due_ms - now_ms)
    return short_duration(wait_ms if wait_ms < UNIT_MS["s"] else wait_ms // 1000 * 1000)
