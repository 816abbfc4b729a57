"""`tidemill delay`: list, show, cancel, move."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from tidemill.cli.holding.due_time import parse_length, parse_time
from tidemill.cli.holding.hold_table import HoldSummary, hold_facts, print_hold, print_holds
from tidemill.cli.record_format import content_facts
from tidemill.cli.session import bootstrap_option, json_option, run_client
from tidemill.cli.text import escape, print_json
from tidemill.client.holding.hold_admin import HeldTopic, HoldAdmin, HoldTarget, ListedHold
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.clock import SystemClock
from tidemill.core.errors import UserError

__all__ = ["delay"]

_ROWS = 20
_ROWS_MAX = 10_000
_ID_PREFIX = "id:"

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def delay() -> None:
    """List, show, cancel and move records that are held, to be delivered later.

    A TARGET is what `list` shows as TICKET, such as 0:17 for the record that was sent as offset 17
    of partition 0, or the id that its sender gave. An id like 0:17 is written id:0:17.
    """


def _target_arguments(command: F) -> F:
    partition = click.option(
        "--partition", type=click.IntRange(min=0), help="Where the id is, if several have it."
    )
    return click.argument("topic")(click.argument("target")(partition(command)))


@delay.command("list")
@click.argument("topic")
@click.option("--partition", type=click.IntRange(min=0), help="Only of this partition.")
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=_ROWS_MAX),
    default=_ROWS,
    show_default=True,
    help="How many to list, those that are due first.",
)
@json_option
@bootstrap_option
def list_(topic: str, partition: int | None, limit: int, as_json: bool, bootstrap: str) -> None:
    """List what TOPIC holds, and plot when all of it is due.

    TOPIC needs a view of what is held, which `tidemill view create --held` makes.
    """
    clock = SystemClock()

    async def work(cluster: ClusterClient) -> tuple[HeldTopic, HoldSummary]:
        admin = HoldAdmin(cluster, clock)
        found = await admin.held_topic(topic)
        summary = HoldSummary(clock.wall_ms(), limit)
        async for held in admin.holds(found, partition=partition):
            summary.add(held)
        return found, summary

    found, summary = run_client(bootstrap, work)
    if as_json:
        print_json(
            {
                "topic": found.name,
                "view": found.view,
                "held": summary.count,
                "size_bytes": summary.size_bytes,
                "due": [{"when": name, "held": count} for name, count in summary.due()],
                "first": [hold_facts(held) for held in summary.first()],
            }
        )
    else:
        print_holds(escape(found.name), summary)


@delay.command()
@_target_arguments
@json_option
@bootstrap_option
def show(topic: str, target: str, partition: int | None, as_json: bool, bootstrap: str) -> None:
    """Show what TOPIC holds under TARGET, with its value and headers."""
    meant = _parse_target(target, partition)
    clock = SystemClock()

    async def work(cluster: ClusterClient) -> ListedHold:
        admin = HoldAdmin(cluster, clock)
        return await admin.find(await admin.held_topic(topic), meant)

    held = run_client(bootstrap, work)
    if as_json:
        print_json(hold_facts(held) | content_facts(held.record))
    else:
        print_hold(held, clock.wall_ms())


@delay.command()
@_target_arguments
@bootstrap_option
def cancel(topic: str, target: str, partition: int | None, bootstrap: str) -> None:
    """Never deliver what TOPIC holds under TARGET."""
    meant = _parse_target(target, partition)

    async def work(cluster: ClusterClient) -> None:
        await HoldAdmin(cluster, SystemClock()).cancel(topic, meant)

    run_client(bootstrap, work)
    click.echo(f"cancelled {escape(target)}")


@delay.command()
@_target_arguments
@click.option("--in", "length", metavar="LENGTH", help="How long from now, such as 10m or 1h30m.")
@click.option("--at", "time", metavar="TIME", help="An ISO 8601 time; a local one if bare.")
@bootstrap_option
def move(
    topic: str,
    target: str,
    partition: int | None,
    length: str | None,
    time: str | None,
    bootstrap: str,
) -> None:
    """Deliver what TOPIC holds under TARGET at another time: --in or --at."""
    meant = _parse_target(target, partition)
    to = _parse_to(length, time)

    async def work(cluster: ClusterClient) -> None:
        await HoldAdmin(cluster, SystemClock()).move(topic, meant, to)

    run_client(bootstrap, work)
    click.echo(f"moved {escape(target)}")


def _parse_target(text: str, partition: int | None) -> HoldTarget:
    """A ticket such as 0:17, or an id."""
    place, colon, ticket = text.partition(":")
    if colon and _is_number(place) and _is_number(ticket):
        if partition not in (None, int(place)):
            raise click.UsageError(f"{text} is in partition {place}, not in {partition}")
        return HoldTarget(int(ticket), int(place))
    name = text.removeprefix(_ID_PREFIX)
    if not name:
        raise UserError("a target is a ticket such as 0:17, or an id")
    return HoldTarget(name, partition)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _parse_to(length: str | None, time: str | None) -> datetime | str:
    if length is not None and time is None:
        return parse_length(length, "--in")
    if time is not None and length is None:
        return parse_time(time, "--at")
    raise click.UsageError("give one of --in and --at")
