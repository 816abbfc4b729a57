"""Plans that move replicas: shown, carried out a few at a time, watched to their end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import click

from tidemill.cli.text import escape, print_json, print_table
from tidemill.client.admin.cluster_admin import (
    ClusterSnapshot,
    elect_leaders,
    take_cluster_snapshot,
)
from tidemill.client.admin.replica_admin import Reassignment, list_reassignments, reassign
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.balancing.balance import startable
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, TopicPartition

__all__ = ["MovePlan", "carry_out", "show_plan", "wait_empty"]

_POLL_S = 0.5
_ROWS_MAX = 50
_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))

Targets = Mapping[TopicPartition, Sequence[int]]


@final
@dataclass(frozen=True, slots=True)
class MovePlan:
    """Where replicas are and where they should be."""

    before: dict[TopicPartition, tuple[int, ...]]
    """Of all partitions; where a move goes on, where it ends."""
    racks: dict[int, str]
    """Of all brokers that are registered."""
    usable: list[int]
    """Brokers that may be given replicas."""
    fixed: frozenset[TopicPartition] = frozenset()
    """Partitions that are being moved, have no leader, or lack a replica: a move of one of them
    would not end, or somebody else has decided about it."""
    views: Mapping[str, str] = field(default_factory=dict)
    """Views, with their bases: they are in no plan."""
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The bytes of one replica of each partition, as far as brokers have told them."""
    targets: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: ClusterSnapshot, without: Collection[int] = ()) -> MovePlan:
        """Nothing planned yet; `without` are brokers that are given nothing."""
        removing = {move.partition: move.removing for move in snapshot.moves}
        before: dict[TopicPartition, tuple[int, ...]] = {}
        for topic in snapshot.topics:
            for index, partition in topic.partitions.items():
                name = TopicPartition(topic.name, index)
                going = removing.get(name, ())
                before[name] = tuple(one for one in partition.replicas if one not in going)
        unusable = {*snapshot.fenced, *snapshot.draining, *without}
        racks = {one.broker_id: one.rack or "" for one in snapshot.brokers}
        usable = [one for one in racks if one not in unusable]
        return cls(before, racks, usable, _fixed(snapshot), snapshot.views)

    def missing(self, name: str) -> KafkaError:
        """Why there is nothing to move of a TOPIC or TOPIC:PARTITION."""
        topic = name.partition(":")[0]
        if topic in self.views:
            detail = f"{escape(topic)} is a view: move the replicas of {escape(self.views[topic])}"
            return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)
        detail = f"there is no {escape(name)}"
        for one in self.before:
            if str(one) == name:
                detail = (
                    f"there is no topic {escape(name)}, but {escape(one.topic)}:{one.partition}"
                )
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)

    def copied_bytes(self, name: TopicPartition) -> int | None:
        """What the move of a partition copies; None if nobody has told how large it is."""
        if name not in self.sizes:
            return None
        return self.sizes[name] * len(set(self.targets[name]).difference(self.before[name]))

    def facts(self) -> list[dict[str, Any]]:
        """The plan for JSON."""
        return [
            {
                "topic": name.topic,
                "partition": name.partition,
                "from": self.before[name],
                "to": target,
                "bytes": self.copied_bytes(name),
            }
            for name, target in self.targets.items()
        ]


def _fixed(snapshot: ClusterSnapshot) -> frozenset[TopicPartition]:
    there = {one.broker_id for one in snapshot.brokers}
    there -= {*snapshot.fenced, *snapshot.silent}
    moving = {move.partition for move in snapshot.moves}
    return frozenset(
        name
        for topic in snapshot.topics
        for index, partition in topic.partitions.items()
        if (name := TopicPartition(topic.name, index)) in moving
        or partition.leader not in there
        or not there.issuperset(partition.replicas)
    )


def show_plan(plan: MovePlan, *, is_dry_run: bool = True, as_json: bool) -> None:
    """Print a plan that is not carried out: for --dry-run, or because there is nothing to do."""
    if as_json:
        print_json({"moves": plan.facts(), "done": not is_dry_run})
        return
    rows = [
        (
            str(name),
            " ".join(map(str, plan.before[name])),
            " ".join(map(str, target)),
            _shown_bytes(plan.copied_bytes(name)),
        )
        for name, target in list(plan.targets.items())[:_ROWS_MAX]
    ]
    if not rows:
        click.echo("nothing to move")
        return
    print_table(("PARTITION", "NOW", "THEN", "COPIES"), rows)
    if len(plan.targets) > _ROWS_MAX:
        click.echo(f"... {len(plan.targets) - _ROWS_MAX} more")
    click.echo(_told_bytes([plan.copied_bytes(name) for name in plan.targets]))


def _told_bytes(copied: Sequence[int | None]) -> str:
    known = [one for one in copied if one is not None]
    total = f"copies {_shown_bytes(sum(known))}"
    if len(known) == len(copied):
        return total
    return f"{total}, without {len(copied) - len(known)} partitions of unknown size"


def _shown_bytes(count: int | None) -> str:
    """In units of a thousand, as disks and networks are measured."""
    if count is None:
        return "?"
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


async def carry_out(client: ClusterClient, plan: MovePlan) -> None:
    """Move everything, a few partitions per broker at once. Raises KafkaError if one is refused.

    Who stops this may start it again: what has begun goes on, and the rest is planned anew.
    """
    left, running = dict(plan.targets), set[TopicPartition]()
    async with _watched("partitions", len(plan.targets)) as show:
        while left or running:
            moves = await list_reassignments(client)
            running &= {move.partition for move in moves}
            begun = startable(left, plan.before, await _copying(client, moves))
            if begun:
                _check(await reassign(client, begun))
                running |= begun.keys()
            left = {name: target for name, target in left.items() if name not in begun}
            show(len(plan.targets) - len(left) - len(running))
            if left or running:
                await asyncio.sleep(_POLL_S)
    moved = [name for name, to in plan.targets.items() if to[0] != plan.before[name][0]]
    if moved:
        await elect_leaders(client, moved, unclean=False)


async def _copying(
    client: ClusterClient, moves: Sequence[Reassignment]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Who comes and who goes in moves that still copy.

    Others only wait for former leaders; and without a leader, or to brokers that are away, nothing
    is copied, perhaps for ever.
    """
    await client.refresh(None)
    copying = []
    for move in moves:
        topic = client.metadata.topics.get(move.partition.topic)
        state = None if topic is None else topic.partitions.get(move.partition.partition)
        if state is None or (
            state.leader != NO_LEADER
            and set(state.replicas).difference(state.isr, move.removing, state.offline_replicas)
        ):
            copying.append((move.adding, move.removing))
    return copying


async def wait_empty(client: ClusterClient, broker_id: int) -> None:
    """Wait until a broker that is drained holds nothing."""
    total = await _held(client, broker_id)
    async with _watched("replicas", total) as show:
        while held := await _held(client, broker_id):
            show(total - held)
            await asyncio.sleep(_POLL_S)


async def _held(client: ClusterClient, broker_id: int) -> int:
    snapshot = await take_cluster_snapshot(client)
    return sum(
        broker_id in partition.replicas
        for topic in snapshot.topics
        for partition in topic.partitions.values()
    )


def _check(refused: Mapping[TopicPartition, KafkaError]) -> None:
    for name, error in refused.items():
        raise KafkaError(error.code, f"{escape(str(name))}: {escape(error.detail)}")


@contextlib.asynccontextmanager
async def _watched(what: str, total: int) -> AsyncIterator[Callable[[int], None]]:
    """A progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
