"""The progress of a group at one moment, as JSON for programs and as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, final

import click

from tidemill.cli.text import escape, print_table
from tidemill.client.admin.group_admin import GroupAdmin, PartitionProgress
from tidemill.client.admin.group_description import GroupDescription, GroupMember, describe_group
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.ids import TopicPartition

__all__ = ["GroupSnapshot", "group_facts", "print_group", "take_snapshot"]

_MEMBER_COLUMNS = ("MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS")
_PROGRESS_COLUMNS = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER")


@final
@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """Members and progress; they come from two requests, a moment apart."""

    description: GroupDescription
    progress: list[PartitionProgress]

    @property
    def lag(self) -> int:
        """The total lag over all partitions whose lag is known."""
        return sum(one.lag or 0 for one in self.progress)

    def owners(self) -> dict[TopicPartition, GroupMember]:
        return {p: member for member in self.description.members for p in member.assignment}


async def take_snapshot(cluster: ClusterClient, group: str) -> GroupSnapshot:
    """The group now; raises KafkaError if it does not exist."""
    description = await describe_group(cluster, group)
    assigned = {p for member in description.members for p in member.assignment}
    return GroupSnapshot(description, await GroupAdmin(cluster).progress(group, assigned))


def group_facts(snapshot: GroupSnapshot) -> dict[str, Any]:
    """The group for JSON. `group reset --from-file` reads its `partitions`."""
    group, owners = snapshot.description, snapshot.owners()
    return {
        "group": group.group_id,
        "type": group.kind,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "lag": snapshot.lag,
        "members": [_member_facts(member) for member in group.members],
        "partitions": [
            {
                "topic": one.partition.topic,
                "partition": one.partition.partition,
                "committed_offset": one.committed.offset if one.committed else None,
                "metadata": one.committed.metadata if one.committed else None,
                "high_watermark": one.end_offset,
                "lag": one.lag,
                "member_id": owners[one.partition].member_id if one.partition in owners else None,
            }
            for one in snapshot.progress
        ],
    }


def _member_facts(member: GroupMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "assignment": [
            {"topic": topic, "partitions": [p.partition for p in partitions]}
            for topic, partitions in groupby(member.assignment, key=lambda p: p.topic)
        ],
    }


def print_group(snapshot: GroupSnapshot, *, rows_max: int | None = None) -> None:
    """Print the group as tables; at most `rows_max` rows, at most half of them members."""
    group = snapshot.description
    plan = f", {escape(group.assignor)}" if group.assignor else ""
    click.echo(
        f"{escape(group.group_id)}  {group.kind}, {escape(group.state)}{plan}, "
        f"{len(group.members)} members, lag {snapshot.lag}, coordinator {group.coordinator}"
    )
    members = [_member_row(member) for member in group.members]
    if members:
        members_max = None if rows_max is None else max(1, rows_max // 2)
        _print_cut(_MEMBER_COLUMNS, members, members_max)
    if snapshot.progress:
        rest = None if rows_max is None else max(rows_max - len(members), rows_max // 2, 1)
        _print_cut(_PROGRESS_COLUMNS, _progress_rows(snapshot), rest)


def _member_row(member: GroupMember) -> tuple[object, ...]:
    partitions = " ".join(
        f"{topic}:{_ranges([p.partition for p in found])}"
        for topic, found in groupby(member.assignment, key=lambda p: p.topic)
    )
    return (member.member_id, member.instance_id, member.client_id, member.host, partitions)


def _ranges(indexes: Sequence[int]) -> str:
    """Ranges such as 0,2-4 for 0, 2, 3 and 4; `indexes` must be ascending."""
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def _progress_rows(snapshot: GroupSnapshot) -> list[tuple[object, ...]]:
    owners = snapshot.owners()
    return [
        (
            one.partition.topic,
            one.partition.partition,
            one.committed.offset if one.committed else None,
            one.end_offset,
            one.lag,
            owners[one.partition].member_id if one.partition in owners else None,
        )
        for one in snapshot.progress
    ]


def _print_cut(
    columns: Sequence[str], rows: Sequence[tuple[object, ...]], rows_max: int | None
) -> None:
    shown = rows if rows_max is None else rows[:rows_max]
    print_table(columns, shown)
    if len(shown) < len(rows):
        click.echo(f"... {len(rows) - len(shown)} more")
