"""`tidemill cluster repair`: replicas whose logs differ in what was committed, and who wins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import click

from tidemill.cli.partition_names import parse_partition
from tidemill.cli.session import bootstrap_option, json_option, run_client
from tidemill.cli.text import escape, print_json
from tidemill.client.admin.repair_admin import LogConflict, choose_leader, find_conflicts
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import ErrorCode, KafkaError, UserError
from tidemill.core.ids import TopicPartition

__all__ = ["repair"]

_POLL_S = 0.2
_ROUNDS_MAX = 150
"""Half a minute: the replica learns the new epoch, cuts its log, and says so."""


@click.command()
@click.argument("name", metavar="[TOPIC:PARTITION]", required=False)
@click.option("--broker", "broker_id", metavar="ID", type=int, help="The replica that refuses.")
@click.option(
    "--take",
    type=click.Choice(["leader", "own"]),
    help="Whose log is kept: that of its leader, or its own.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be dropped, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before records are dropped.")
@json_option
@bootstrap_option
def repair(
    name: str | None,
    broker_id: int | None,
    take: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Show replicas that refuse to drop committed records, or decide whose log is kept.

    Without TOPIC:PARTITION all of them are shown, with what either decision would drop.
    """
    if name is None or broker_id is None or take is None:
        if take is not None or broker_id is not None:
            raise click.UsageError("give TOPIC:PARTITION, --broker and --take")
        wanted = None if name is None else parse_partition(name)
        _show(run_client(bootstrap, partial(_look, wanted=wanted)), wanted, as_json=as_json)
        return
    partition = parse_partition(name)
    conflict = _pick(run_client(bootstrap, find_conflicts), partition, broker_id)
    if not dry_run and not yes:
        click.echo(escape(_loss(conflict, take)), err=True)
        click.confirm("These records are lost. Go on?", abort=True, err=True)

    async def work(client: ClusterClient) -> None:
        winner = conflict.leader_id if take == "leader" else conflict.broker_id
        await client.refresh(None)
        await choose_leader(client, conflict, winner)
        await _wait_settled(client, conflict)

    if not dry_run:
        run_client(bootstrap, work)
    if as_json:
        print_json({**_facts(conflict), "take": take, "done": not dry_run})
    else:
        click.echo(escape(_loss(conflict, take)) if dry_run else f"{escape(name)} is repaired")


async def _look(client: ClusterClient, wanted: TopicPartition | None) -> list[LogConflict]:
    """All conflicts. KafkaError if the wanted partition does not exist."""
    found = await find_conflicts(client)
    if wanted is not None:
        topic = client.metadata.topics.get(wanted.topic)
        if topic is None or wanted.partition not in topic.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code, f"there is no partition {escape(str(wanted))}")
    return found


async def _wait_settled(client: ClusterClient, conflict: LogConflict) -> None:
    """Wait until the replica does not refuse any more. Raises UserError."""
    for _ in range(_ROUNDS_MAX):
        left = await find_conflicts(client)
        if not any(
            (one.partition, one.broker_id) == (conflict.partition, conflict.broker_id)
            for one in left
        ):
            return
        await asyncio.sleep(_POLL_S)
    raise UserError(
        f"{conflict.partition} on broker {conflict.broker_id} still refuses: see the broker's log"
    )


def _pick(found: Sequence[LogConflict], name: TopicPartition, broker_id: int) -> LogConflict:
    for one in found:
        if (one.partition, one.broker_id) == (name, broker_id):
            return one
    raise UserError(f"{name} on broker {broker_id} refuses nothing: there is nothing to repair")


def _show(found: Sequence[LogConflict], only: TopicPartition | None, *, as_json: bool) -> None:
    shown = [one for one in found if only is None or one.partition == only]
    if as_json:
        print_json([_facts(one) for one in shown])
        return
    if not shown:
        click.echo("no replica waits for a decision")
    for one in shown:
        for line in _sentences(one):
            click.echo(escape(line))


def _sentences(one: LogConflict) -> Iterator[str]:
    yield (
        f"{one.partition} on broker {one.broker_id} is not replicated: from offset "
        f"{one.differ_from} on its leader, broker {one.leader_id}, has something else or nothing, "
        f"but what is below {one.committed_offset} was committed here"
    )
    yield f"  --take leader: {_loss(one, 'leader')}"
    yield f"  --take own: {_loss(one, 'own')}"


def _loss(one: LogConflict, take: str) -> str:
    """What a decision drops."""
    if take == "leader":
        return f"broker {one.broker_id} drops {_offsets(one.differ_from, one.own_end)}"
    return (
        f"broker {one.broker_id} leads, and the others drop what they have from offset "
        f"{one.differ_from} on; broker {one.leader_id} drops "
        f"{_offsets(one.differ_from, one.leader_end)}"
    )


def _offsets(start: int, end: int) -> str:
    if end < 0:
        return f"everything from offset {start} on"
    return f"offsets {start} to {end - 1}" if end > start else "nothing"


def _facts(one: LogConflict) -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "broker": one.broker_id,
        "leader": one.leader_id,
        "leader_epoch": one.leader_epoch,
        "differ_from": one.differ_from,
        "committed": one.committed_offset,
        "end": one.own_end,
        "leader_end": one.leader_end,
    }
