"""`tidemill cluster reassign`, `drain`, `rebalance` and `unregister`: where replicas are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import click

from tidemill.cli.partition_names import parse_partition, try_parse_number
from tidemill.cli.replica_moves import MovePlan, carry_out, show_plan, wait_empty
from tidemill.cli.session import bootstrap_option, json_option, run_client
from tidemill.cli.text import escape, print_json
from tidemill.client.admin.cluster_admin import ClusterSnapshot, take_cluster_snapshot
from tidemill.client.admin.log_directories import find_log_sizes
from tidemill.client.admin.replica_admin import (
    list_reassignments,
    reassign,
    set_draining,
    unregister_broker,
)
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.balancing.balance import evened, vacated
from tidemill.core.errors import ErrorCode, KafkaError, UserError
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.steps import finished

__all__ = ["drain", "dry_run_option", "reassign_command", "rebalance", "unregister"]

dry_run_option = click.option("--dry-run", is_flag=True, help="Print the plan, and change nothing.")


@click.command("reassign")
@click.argument("names", metavar="TOPIC[:PARTITION]...", nargs=-1, required=True)
@click.option(
    "--brokers",
    metavar="ID,...",
    help="The brokers that should hold the partitions, the preferred leader first; for a whole "
    "topic each of them in turn.",
)
@click.option("--cancel", is_flag=True, help="Take back moves that are not done.")
@dry_run_option
@json_option
@bootstrap_option
def reassign_command(
    names: tuple[str, ...],
    brokers: str | None,
    cancel: bool,
    dry_run: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Move replicas of partitions to other brokers, and wait until they are there."""
    if (not brokers) is not cancel:
        raise click.UsageError("give either --brokers or --cancel")
    ids = _parse_ids(brokers or "")

    async def work(client: ClusterClient) -> None:
        snapshot = await take_cluster_snapshot(client)
        plan = await _look(client, snapshot)
        chosen = list(dict.fromkeys(one for name in names for one in _partitions(plan, name)))
        if cancel:
            await _cancel(client, plan, chosen, dry_run=dry_run, as_json=as_json)
            return
        targets = {name: _rotated(ids, index) for index, name in enumerate(chosen)}
        changed = {name: to for name, to in targets.items() if to != plan.before[name]}
        _check_targets(snapshot, plan, changed)
        await _run(client, replace(plan, targets=changed), dry_run=dry_run, as_json=as_json)

    run_client(bootstrap, work)


@click.command()
@dry_run_option
@json_option
@bootstrap_option
def rebalance(dry_run: bool, as_json: bool, bootstrap: str) -> None:
    """Spread replicas, bytes and leaderships over all brokers, and wait until that is done."""

    async def work(client: ClusterClient) -> None:
        plan = await _look(client, await take_cluster_snapshot(client))
        steps = evened(
            plan.before, plan.racks, usable=plan.usable, sizes=plan.sizes, fixed=plan.fixed
        )
        plan = replace(plan, targets=finished(steps))
        if plan.fixed:
            count = len(plan.fixed)
            line = "left out: {} partitions that are being moved, have no leader or lack a replica"
            click.echo(line.format(count), err=True)
        await _run(client, plan, dry_run=dry_run, as_json=as_json)

    run_client(bootstrap, work)


@click.command()
@click.argument("broker_id", metavar="ID", type=click.IntRange(0, 2**31 - 1))
@click.option("--cancel", is_flag=True, help="Give the broker replicas again.")
@dry_run_option
@json_option
@bootstrap_option
def drain(broker_id: int, cancel: bool, dry_run: bool, as_json: bool, bootstrap: str) -> None:
    """Move everything off broker ID, and wait until it is empty; then it may be stopped.

    The controller goes on by itself if this command is stopped.
    """

    async def work(client: ClusterClient) -> None:
        snapshot = await take_cluster_snapshot(client)
        _check_there(snapshot, broker_id)
        if cancel:
            await _cancel_drain(client, snapshot, broker_id, dry_run=dry_run, as_json=as_json)
            return
        plan = await _look(client, snapshot, without=[broker_id])
        steps = vacated(plan.before, plan.racks, [broker_id], usable=plan.usable)
        plan = replace(plan, targets=finished(steps))
        _check_room(plan, broker_id)
        if dry_run:
            show_plan(plan, as_json=as_json)
            return
        await set_draining(client, broker_id, is_draining=True)
        await wait_empty(client, broker_id)
        if as_json:
            print_json({"moves": plan.facts(), "done": True})
        else:
            click.echo(f"broker {broker_id} is empty: {len(plan.targets)} partitions were moved")

    run_client(bootstrap, work)


@click.command()
@click.argument("broker_id", metavar="ID", type=click.IntRange(0, 2**31 - 1))
@json_option
@bootstrap_option
def unregister(broker_id: int, as_json: bool, bootstrap: str) -> None:
    """Forget broker ID, which was drained and stopped and does not come back."""

    async def work(client: ClusterClient) -> None:
        await unregister_broker(client, broker_id)

    run_client(bootstrap, work)
    if as_json:
        print_json({"broker": broker_id, "done": True})
    else:
        click.echo(f"broker {broker_id} is forgotten")


async def _look(
    client: ClusterClient, snapshot: ClusterSnapshot, without: Collection[int] = ()
) -> MovePlan:
    """Where replicas are, and how large; nothing is planned yet."""
    plan = MovePlan.of(snapshot, without=without)
    return replace(plan, sizes=await find_log_sizes(client))


async def _run(client: ClusterClient, plan: MovePlan, *, dry_run: bool, as_json: bool) -> None:
    if dry_run or not plan.targets:
        show_plan(plan, is_dry_run=dry_run, as_json=as_json)
        return
    await carry_out(client, plan)
    if as_json:
        print_json({"moves": plan.facts(), "done": True})
    else:
        click.echo(f"moved {len(plan.targets)} partitions")


async def _cancel(
    client: ClusterClient,
    plan: MovePlan,
    chosen: list[TopicPartition],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send the replicas that are being moved back to where they come from."""
    back = {
        move.partition: tuple(one for one in move.replicas if one not in move.adding)
        for move in await list_reassignments(client)
        if move.partition in chosen
    }
    plan = replace(plan, targets=back, sizes=dict.fromkeys(back, 0))  # all of them are still there
    if dry_run or not back:
        show_plan(plan, is_dry_run=dry_run, as_json=as_json)
        return
    refused = await reassign(client, dict.fromkeys(back))
    for name, error in refused.items():
        if error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:  # it has just ended
            raise KafkaError(error.code, f"{escape(str(name))}: {escape(error.detail)}")
    if as_json:
        print_json({"moves": plan.facts(), "done": True})
    else:
        click.echo(f"took back the moves of {len(back)} partitions")


async def _cancel_drain(
    client: ClusterClient,
    snapshot: ClusterSnapshot,
    broker_id: int,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    is_draining = broker_id in snapshot.draining
    if is_draining and not dry_run:
        await set_draining(client, broker_id, is_draining=False)
    if as_json:
        print_json({"moves": [], "done": not dry_run})
    elif not is_draining:
        click.echo(f"broker {broker_id} is not being drained")
    else:
        verb = "would be" if dry_run else "is"
        click.echo(f"broker {broker_id} {verb} given replicas again")


def _check_there(snapshot: ClusterSnapshot, broker_id: int) -> None:
    """UserError if there is no such broker now: it could not be told to drain."""
    there = [one.broker_id for one in snapshot.brokers]
    if broker_id not in there:
        shown = ", ".join(map(str, there))
        raise UserError(
            f"broker {broker_id} is not there, only {shown}: start it; or, if it is gone for good, "
            "wait until others have its replicas, then use `tidemill cluster unregister`"
        )


def _check_targets(
    snapshot: ClusterSnapshot, plan: MovePlan, targets: Mapping[TopicPartition, tuple[int, ...]]
) -> None:
    """UserError if the controller would refuse a target: a plan that it refuses is none."""
    for name, target in targets.items():
        if len(set(target)) != len(target):
            raise UserError("--brokers: name each broker once")
        for broker_id in target:
            if broker_id in plan.usable or broker_id in plan.before[name]:
                continue
            if broker_id in snapshot.draining:
                raise UserError(
                    f"broker {broker_id} is being drained; "
                    f"`tidemill cluster drain {broker_id} --cancel` stops that"
                )
            there = ", ".join(map(str, plan.usable))
            raise UserError(f"broker {broker_id} takes no replicas now, only {there}: start it")


def _check_room(plan: MovePlan, broker_id: int) -> None:
    """UserError if a replica has nowhere to go: the drain would never end."""
    stuck = [
        name
        for name, replicas in plan.before.items()
        if broker_id in plan.targets.get(name, replicas)
    ]
    if stuck:
        held, room = len(plan.before[stuck[0]]), len(plan.usable)
        raise UserError(
            f"{escape(str(stuck[0]))} has {held} replicas, and without broker {broker_id} there is "
            f"room for {room}: add a broker, or use `tidemill topic alter --replication`"
        )


def _partitions(plan: MovePlan, name: str) -> list[TopicPartition]:
    """The partitions that a TOPIC or TOPIC:PARTITION means."""
    found = [one for one in plan.before if one.topic == name]
    if not found and name not in plan.views and ":" in name:
        one = parse_partition(name)
        found = [one] if one in plan.before else []
    if not found:
        raise plan.missing(name)
    return found


def _parse_ids(text: str) -> tuple[int, ...]:
    """UserError unless they are ids with commas between, or nothing."""
    ids = [try_parse_number(part.strip()) for part in text.split(",")] if text else []
    if None in ids:
        raise UserError(f"--brokers {text}: expected ids, as in 1,2,3")
    return tuple(one for one in ids if one is not None)


def _rotated(ids: tuple[int, ...], turns: int) -> tuple[int, ...]:
    first = turns % len(ids) if ids else 0
    return ids[first:] + ids[:first]
