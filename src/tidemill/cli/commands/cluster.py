"""`tidemill cluster`: describe, elect; the commands of `cluster_moves.py`."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from functools import partial

import click

from tidemill.cli.cluster_commands.cluster_features import features
from tidemill.cli.cluster_commands.cluster_migrate import migrate
from tidemill.cli.cluster_commands.cluster_moves import (
    drain,
    dry_run_option,
    reassign_command,
    rebalance,
    unregister,
)
from tidemill.cli.cluster_commands.cluster_repair import repair
from tidemill.cli.cluster_table import ClusterHealth, cluster_facts, print_cluster
from tidemill.cli.failures import explain
from tidemill.cli.partition_names import parse_partition
from tidemill.cli.session import bootstrap_option, json_option, run_client
from tidemill.cli.text import escape, print_json
from tidemill.client.admin.cluster_admin import (
    ElectionResult,
    elect_leaders,
    take_cluster_snapshot,
)
from tidemill.client.admin.repair_admin import find_conflicts_among
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.core.errors import ErrorCode, KafkaError, UserError
from tidemill.core.ids import TopicPartition

__all__ = ["cluster"]

_WATCH_S = 1.0
_NAMES_MAX = 20
_NOT_NEEDED = "no partition needs an election"


@click.group()
def cluster() -> None:
    """Describe the cluster, elect leaders, move and repair replicas, raise features."""


cluster.add_command(reassign_command)
cluster.add_command(drain)
cluster.add_command(rebalance)
cluster.add_command(migrate)
cluster.add_command(repair)
cluster.add_command(features)
cluster.add_command(unregister)


@cluster.command()
@click.option("--watch", is_flag=True, help="Repeat every second, until Ctrl-C.")
@json_option
@bootstrap_option
def describe(watch: bool, as_json: bool, bootstrap: str) -> None:
    """Describe brokers and replicas: who leads, who is missing, what to do."""

    async def work(client: ClusterClient) -> None:
        await _show(client, as_json=as_json)
        while watch:
            await asyncio.sleep(_WATCH_S)
            try:
                await _show(client, as_json=as_json, again=True)
            except (ClientError, KafkaError) as error:  # people watch while brokers restart
                failure = explain(error)
                click.echo(f"error: {failure.line if failure else error}", err=True)

    run_client(bootstrap, work)


@cluster.command()
@click.argument("kind", type=click.Choice(["preferred", "unclean"]))
@click.option(
    "--partition",
    "names",
    metavar="TOPIC:PARTITION",
    multiple=True,
    help="One partition; repeatable.  [default: all that need it]",
)
@click.option("--yes", is_flag=True, help="Do not ask before an unclean election.")
@dry_run_option
@json_option
@bootstrap_option
def elect(
    kind: str, names: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool, bootstrap: str
) -> None:
    """Elect leaders.

    `preferred` gives partitions back to the first of their replicas. `unclean` gives a partition
    without a leader to a replica that may lack acknowledged records: they are lost then.
    """
    is_unclean = kind == "unclean"
    partitions = [parse_partition(name) for name in names] or None
    if dry_run or (is_unclean and not yes):
        partitions = run_client(
            bootstrap, partial(_needing, unclean=is_unclean, named=partitions or [])
        )
    if dry_run:
        _show_needing(partitions or [], as_json=as_json)
        return
    if is_unclean and not yes and partitions:
        told = ", ".join(escape(str(one)) for one in partitions[:_NAMES_MAX])
        more = f" and {len(partitions) - _NAMES_MAX} more" if len(partitions) > _NAMES_MAX else ""
        question = f"Records that the new leaders lack are lost in {told}{more}. Go on?"
        click.confirm(question, abort=True, err=True)

    async def work(client: ClusterClient) -> list[ElectionResult]:
        if partitions == []:
            return []
        return await elect_leaders(client, partitions, unclean=is_unclean)

    results = run_client(bootstrap, work)
    if as_json:
        print_json([_facts(result) for result in results])
    elif not results:
        click.echo(_NOT_NEEDED)
    else:
        for result in results:
            done = result.code is ErrorCode.NONE
            outcome = "elected" if done else f"{result.code.name}: {escape(result.detail)}"
            click.echo(f"{escape(str(result.partition))}  {outcome}")
    _check_done(results)


async def _needing(
    client: ClusterClient, *, unclean: bool, named: list[TopicPartition]
) -> list[TopicPartition]:
    """Those of the named partitions, or of all, that an election would give another leader."""
    health = ClusterHealth(await take_cluster_snapshot(client))
    known = {name for name, _ in health.partitions}
    for one in named:
        if one not in known:
            raise UserError(f"there is no partition {one}: see `tidemill topic list`")
    needing = health.offline if unclean else health.not_preferred
    return [one for one in named or needing if one in needing]


def _show_needing(partitions: list[TopicPartition], *, as_json: bool) -> None:
    if as_json:
        print_json([{"topic": one.topic, "partition": one.partition} for one in partitions])
    elif not partitions:
        click.echo(_NOT_NEEDED)
    for one in [] if as_json else partitions:
        click.echo(f"{escape(str(one))}  would get another leader")


def _check_done(results: list[ElectionResult]) -> None:
    harmless = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    refused = [result for result in results if result.code not in harmless]
    if refused:
        names = ", ".join(str(result.partition) for result in refused)
        raise KafkaError(refused[0].code, f"not elected: {names}")


def _facts(result: ElectionResult) -> dict[str, object]:
    return {
        "topic": result.partition.topic,
        "partition": result.partition.partition,
        "code": result.code.name,
        "detail": result.detail,
    }


async def _show(client: ClusterClient, *, as_json: bool, again: bool = False) -> None:
    taken = await take_cluster_snapshot(client)
    conflicts = await find_conflicts_among(client, ClusterHealth(taken).behind())
    snapshot = replace(taken, conflicts=conflicts)
    if as_json:
        print_json(cluster_facts(snapshot))
    else:
        if again and sys.stdout.isatty():
            click.clear()
        elif again:
            click.echo()
        print_cluster(snapshot)
    sys.stdout.flush()
