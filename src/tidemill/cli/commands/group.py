"""`tidemill group`: list, describe, reset, delete, evict."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tidemill.cli.failures import explain
from tidemill.cli.lag_table import group_facts, print_group, take_snapshot
from tidemill.cli.reset_plan import (
    PlannedMove,
    ResetTarget,
    ShiftBy,
    parse_topic_choice,
    plan_reset,
    read_saved_offsets,
)
from tidemill.cli.session import bootstrap_option, json_option, run_client
from tidemill.cli.start_position import parse_time_ms
from tidemill.cli.text import escape, print_json, print_table
from tidemill.client.admin.group_admin import GroupAdmin, GroupSummary
from tidemill.client.admin.group_description import describe_group
from tidemill.client.admin.group_offsets import GroupOffsets
from tidemill.client.consuming.consumer import EARLIEST, LATEST, AtOffset, AtTime
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.core.clock import SystemClock
from tidemill.core.errors import ErrorCode, KafkaError, UserError

__all__ = ["group"]

_WATCH_S = 1.0
_LINES_AROUND_TABLES = 10
"""Lines of a watched group beside its rows: its head, the table heads, what was cut off."""


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups."""


@group.command("list")
@click.option("--state", help="Only groups in this state: Stable, Empty, ...")
@json_option
@bootstrap_option
def list_(state: str | None, as_json: bool, bootstrap: str) -> None:
    """List the groups, by name."""

    async def work(cluster: ClusterClient) -> list[GroupSummary]:
        return await GroupAdmin(cluster).list_groups()

    wanted = None if state is None else state.lower()
    groups = [g for g in run_client(bootstrap, work) if wanted in {None, g.state.lower()}]
    if as_json:
        print_json([_summary_facts(summary) for summary in groups])
    else:
        rows = [(g.group_id, g.kind, g.state, g.coordinator) for g in groups]
        print_table(("GROUP", "TYPE", "STATE", "COORDINATOR"), rows)


@group.command()
@click.argument("name")
@click.option("--watch", is_flag=True, help="Repeat every second, until Ctrl-C.")
@json_option
@bootstrap_option
def describe(name: str, watch: bool, as_json: bool, bootstrap: str) -> None:
    """Describe the group NAME: members, assignment, committed offsets and lag.

    The output of --json can be saved and passed to `group reset --from-file` later.
    """

    async def work(cluster: ClusterClient) -> None:
        await _show(cluster, name, as_json=as_json)
        while watch:
            await asyncio.sleep(_WATCH_S)
            await _show_again(cluster, name, as_json=as_json)

    run_client(bootstrap, work)


@group.command()
@click.argument("name")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:0,1]",
    multiple=True,
    help="A topic or some partitions of it; repeatable.",
)
@click.option(
    "--all-topics", is_flag=True, help="All topics for which the group has committed offsets."
)
@click.option("--to-earliest", is_flag=True, help="To the first stored record.")
@click.option("--to-latest", is_flag=True, help="To the end, after the last record.")
@click.option("--to-offset", metavar="N", type=click.IntRange(0, 2**63 - 1))
@click.option("--to-time", metavar="TIME", help="An age such as -10m, or an ISO 8601 time.")
@click.option("--shift-by", metavar="N", type=int, help="Forward by N records; -5 goes back.")
@click.option(
    "--from-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="To the offsets that `group describe --json` printed.",
)
@click.option("--dry-run", is_flag=True, help="Show the new offsets, change nothing.")
@json_option
@bootstrap_option
def reset(
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    shift_by: int | None,
    from_file: Path | None,
    dry_run: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Move the committed offsets of the group NAME, which must have no members.

    It acts at once; use --dry-run to look first. An offset outside the partition becomes the
    nearest one inside. A group that does not exist yet will start at the new offsets.
    """
    target = _target(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_time=to_time,
        shift_by=shift_by,
        from_file=from_file,
    )
    if (topics and all_topics) or not (topics or all_topics or from_file):
        raise click.UsageError("give either --topic (repeatable) or --all-topics")
    choices = [parse_topic_choice(text) for text in topics] if topics else None

    async def work(cluster: ClusterClient) -> list[PlannedMove]:
        await _refuse_active(cluster, name)
        moves = await plan_reset(cluster, name, target, choices)
        if moves and not dry_run:
            await GroupOffsets(cluster, name).commit({m.partition: m.after for m in moves})
        return moves

    moves = run_client(bootstrap, work)
    if as_json:
        facts = {"group": name, "done": not dry_run, "moves": [_move_facts(m) for m in moves]}
        print_json(facts)
    else:
        _print_moves(name, moves, dry_run=dry_run)


@group.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@bootstrap_option
def delete(names: tuple[str, ...], bootstrap: str) -> None:
    """Delete groups without members, and their committed offsets."""

    async def work(cluster: ClusterClient) -> dict[str, ErrorCode]:
        return await GroupAdmin(cluster).delete_groups(names)

    _report_each(run_client(bootstrap, work), done="deleted")


@group.command()
@click.argument("name")
@click.option(
    "--instance", "instances", metavar="ID", multiple=True, help="Remove this instance; repeatable."
)
@bootstrap_option
def evict(name: str, instances: tuple[str, ...], bootstrap: str) -> None:
    """Remove static members that will not come back from the group NAME.

    Removes all of them, or only the given instances. A live member joins again.
    """

    async def work(cluster: ClusterClient) -> dict[str, ErrorCode]:
        described = await describe_group(cluster, name)
        static = {m.instance_id: m for m in described.members if m.instance_id is not None}
        for instance in instances:
            if instance not in static:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{name} has no instance {instance}")
        gone = [static[instance] for instance in dict.fromkeys(instances)] or [*static.values()]
        codes = await GroupAdmin(cluster).remove_members(name, gone) if gone else {}
        return {m.instance_id or m.member_id: codes[m.member_id] for m in gone}

    _report_each(run_client(bootstrap, work), done="evicted")


# --- describe ------------------------------------------------------------------------------------


async def _show(cluster: ClusterClient, name: str, *, as_json: bool) -> None:
    snapshot = await take_snapshot(cluster, name)
    if as_json:
        print_json(group_facts(snapshot))
    else:
        print_group(snapshot)
    sys.stdout.flush()


async def _show_again(cluster: ClusterClient, name: str, *, as_json: bool) -> None:
    """Print the group again: over the last output, cut to the terminal's height, or below it."""
    try:
        snapshot = await take_snapshot(cluster, name)
    except (ClientError, KafkaError) as error:
        # People watch a group while brokers restart.
        failure = explain(error)
        click.echo(f"error: {failure.line if failure else error}", err=True)
        return
    if as_json:
        print_json(group_facts(snapshot))
    elif sys.stdout.isatty():
        click.clear()
        height = shutil.get_terminal_size().lines
        print_group(snapshot, rows_max=max(2, height - _LINES_AROUND_TABLES))
    else:
        click.echo()
        print_group(snapshot)
    sys.stdout.flush()


def _summary_facts(summary: GroupSummary) -> dict[str, Any]:
    return {
        "group": summary.group_id,
        "type": summary.kind,
        "state": summary.state,
        "protocol_type": summary.protocol_type,
        "coordinator": summary.coordinator,
    }


# --- reset ---------------------------------------------------------------------------------------


def _target(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    shift_by: int | None,
    from_file: Path | None,
) -> ResetTarget:
    """The one that was asked for."""
    asked: list[ResetTarget] = []
    if to_earliest:
        asked.append(EARLIEST)
    if to_latest:
        asked.append(LATEST)
    if to_offset is not None:
        asked.append(AtOffset(to_offset))
    if to_time is not None:
        asked.append(AtTime(_time_ms(to_time)))
    if shift_by is not None:
        asked.append(ShiftBy(shift_by))
    if from_file is not None:
        asked.append(read_saved_offsets(from_file))
    if len(asked) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-offset, --to-time, --shift-by, "
            "--from-file"
        )
    return asked[0]


def _time_ms(text: str) -> int:
    try:
        return parse_time_ms(text, now_ms=SystemClock().wall_ms())
    except ValueError:
        raise UserError(
            f"--to-time {text}: expected an age such as -10m (ms s m h d) "
            "or a time such as 2026-11-15T21:30:00Z"
        ) from None


async def _refuse_active(cluster: ClusterClient, name: str) -> None:
    """Refuse a group with members: their next commit would overwrite the new offsets."""
    try:
        described = await describe_group(cluster, name)
    except KafkaError as refusal:
        if refusal.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return
        raise
    if described.members:
        raise KafkaError(
            ErrorCode.NON_EMPTY_GROUP,
            f"{name} is {described.state} with {len(described.members)} members",
        )


def _move_facts(move: PlannedMove) -> dict[str, Any]:
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "before": move.before,
        "after": move.after,
    }


def _print_moves(name: str, moves: Sequence[PlannedMove], *, dry_run: bool) -> None:
    if not moves:
        click.echo(f"{escape(name)} has nothing to move")
        return
    rows = [(m.partition.topic, m.partition.partition, m.before, m.after) for m in moves]
    print_table(("TOPIC", "PARTITION", "BEFORE", "AFTER"), rows)
    done = "would move" if dry_run else "moved"
    click.echo(f"{done} {len(moves)} partitions of {escape(name)}")


# --- delete and evict ----------------------------------------------------------------------------


def _report_each(codes: dict[str, ErrorCode], *, done: str) -> None:
    refused: dict[str, ErrorCode] = {}
    for name, code in codes.items():
        if code is ErrorCode.NONE:
            click.echo(f"{done} {escape(name)}")
        else:
            refused[name] = code
    if refused:
        raise KafkaError(next(iter(refused.values())), f"not {done}: {', '.join(refused)}")
