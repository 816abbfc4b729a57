"""`tidemill view`: create, list, describe, delete."""

from __future__ import annotations

from typing import Any

import click

from tidemill.cli.session import bootstrap_option, json_option, run_client
from tidemill.cli.text import escape, print_json, print_table
from tidemill.client.admin.topic_admin import Admin, CreatedTopic
from tidemill.client.admin.view_admin import ViewAdmin, ViewInfo
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.offset_lookup import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidemill.core.errors import ErrorCode, KafkaError

__all__ = ["view"]


@click.group()
def view() -> None:
    """Create, list, describe and delete views: topics that show the matching records of another."""


@view.command()
@click.argument("name")
@click.option("--of", "base", metavar="TOPIC", required=True, help="The topic to show.")
@click.option(
    "--where",
    metavar="SELECTOR",
    default="",
    help="Show the records that match, by their headers; without it, all of them.",
)
@click.option("--held", is_flag=True, help="Show the records that are held, not yet delivered.")
@json_option
@bootstrap_option
def create(name: str, base: str, where: str, held: bool, as_json: bool, bootstrap: str) -> None:
    """Create the view NAME."""
    wanted = ViewInfo(name, base, where, held)

    async def work(cluster: ClusterClient) -> CreatedTopic:
        return await ViewAdmin(cluster).create(wanted)

    made = run_client(bootstrap, work)
    if as_json:
        facts = _facts(wanted)
        print_json(facts | {"topic_id": str(made.topic_id), "partitions": made.partitions})
    else:
        click.echo(f"created {escape(name)}: a view of {escape(base)}")


@view.command("list")
@json_option
@bootstrap_option
def list_(as_json: bool, bootstrap: str) -> None:
    """List the views, by name."""

    async def work(cluster: ClusterClient) -> list[ViewInfo]:
        return await ViewAdmin(cluster).list_views()

    views = run_client(bootstrap, work)
    if as_json:
        print_json([_facts(one) for one in views])
    else:
        rows = [(one.name, one.of, "(held)" if one.held else one.where) for one in views]
        print_table(("VIEW", "OF", "WHERE"), rows)


@view.command()
@click.argument("name")
@json_option
@bootstrap_option
def describe(name: str, as_json: bool, bootstrap: str) -> None:
    """Describe the view NAME: its topic, its selector, and the offsets that it shares with it."""

    async def work(cluster: ClusterClient) -> dict[str, Any]:
        found = await ViewAdmin(cluster).describe(name)
        admin = Admin(cluster)
        starts = await admin.list_offsets(name, EARLIEST_TIMESTAMP)
        ends = await admin.list_offsets(name, LATEST_TIMESTAMP)
        partitions = [
            {"partition": index, "log_start_offset": start.offset, "high_watermark": end.offset}
            for index, start, end in ((one, starts[one], ends[one]) for one in starts)
        ]
        return _facts(found) | {"partitions": partitions}

    facts = run_client(bootstrap, work)
    if as_json:
        print_json(facts)
        return
    click.echo(f"{escape(name)}  of {escape(facts['of'])}")
    shown = "what is held" if facts["held"] else "all records"
    click.echo(f"  where {escape(facts['where'])}" if facts["where"] else f"  {shown}")
    rows = [tuple(one.values()) for one in facts["partitions"]]
    print_table(("PARTITION", "START", "END"), rows)


@view.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@bootstrap_option
def delete(names: tuple[str, ...], bootstrap: str) -> None:
    """Delete views; the records stay in their topics."""

    async def work(cluster: ClusterClient) -> dict[str, ErrorCode]:
        return await ViewAdmin(cluster).delete(names)

    outcome = run_client(bootstrap, work)
    for name, code in outcome.items():
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"not deleted: {name}")
        click.echo(f"deleted {escape(name)}")


def _facts(one: ViewInfo) -> dict[str, Any]:
    return {"name": one.name, "of": one.of, "where": one.where, "held": one.held}
