"""The state of a cluster at one moment: tables, sentences about what is wrong, JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import click

from tidemill.cli.text import escape, print_table
from tidemill.client.admin.cluster_admin import ClusterSnapshot
from tidemill.client.admin.replica_admin import Reassignment
from tidemill.client.network.metadata_cache import PartitionInfo
from tidemill.core.ids import TopicPartition
from tidemill.core.logs import listed

__all__ = ["ClusterHealth", "cluster_facts", "print_cluster"]

_COLUMNS = ("BROKER", "ADDRESS", "RACK", "LEADS", "REPLICAS", "IN SYNC", "ROLE")
_SENTENCES_MAX = 20
_NAMES_MAX = 5
"""Partitions that a sentence names; it gives the number of the others."""


@final
@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker that lives or holds replicas."""

    broker_id: int
    address: str | None
    """None: it is not registered."""
    rack: str | None
    leads: int
    replicas: int
    in_sync: int
    role: str


@final
class ClusterHealth:
    """What a snapshot says about brokers and partitions."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._live = {one.broker_id for one in snapshot.brokers}
        self.partitions = [
            (TopicPartition(topic.name, index), partition)
            for topic in snapshot.topics
            for index, partition in topic.partitions.items()
        ]
        self.offline = [name for name, one in self.partitions if one.leader not in self._live]
        adding = {move.partition: move.adding for move in snapshot.moves}
        self.under_replicated = [
            name
            for name, one in self.partitions
            if one.leader in self._live
            and set(one.replicas).difference(one.isr, adding.get(name, ()))
        ]
        self.not_preferred = [
            name
            for name, one in self.partitions
            if one.leader in self._live and one.replicas and one.leader != one.replicas[0]
        ]

    def behind(self) -> dict[int, list[TopicPartition]]:
        """The replicas that live and are not in sync, by broker."""
        states = dict(self.partitions)
        found: dict[int, list[TopicPartition]] = {}
        for name in self.under_replicated:
            state = states[name]
            for broker_id in state.replicas:
                if broker_id in self._live and broker_id not in state.isr:
                    found.setdefault(broker_id, []).append(name)
        return found

    def rows(self) -> list[BrokerRow]:
        """All brokers, also those that are missing and hold replicas, by id."""
        found = {one.broker_id: one for one in self._snapshot.brokers}
        holders = {member for _, one in self.partitions for member in one.replicas}
        partitions = [one for _, one in self.partitions]
        rows = []
        for broker_id in sorted(found.keys() | holders):
            broker = found.get(broker_id)
            rows.append(
                BrokerRow(
                    broker_id,
                    None if broker is None else f"{broker.host}:{broker.port}",
                    None if broker is None else broker.rack,
                    sum(one.leader == broker_id for one in partitions),
                    sum(broker_id in one.replicas for one in partitions),
                    sum(broker_id in one.isr for one in partitions),
                    self._role(broker_id),
                )
            )
        return rows

    def _role(self, broker_id: int) -> str:
        if broker_id not in self._live:
            return "missing"
        role = "controller" if broker_id == self._snapshot.controller_id else "broker"
        if broker_id in self._snapshot.fenced:
            return f"{role}, fenced"
        return f"{role}, draining" if broker_id in self._snapshot.draining else role

    def sentences(self) -> Iterator[str]:
        """What is wrong, and what to do about it; nothing if all is well."""
        states = dict(self.partitions)
        if self._snapshot.controller_id not in self._live:
            yield "there is no controller: topics cannot be changed until one is elected"
        for row in self.rows():
            yield from self._about(row)
        offline = _grouped(self.offline, lambda name: self._offline_advice(states[name]))
        for advice, names in offline.items():
            yield f"{_subject(names, 'has', 'have')} no leader: {advice}"
        behind = _grouped(self.under_replicated, lambda name: _told_behind(states[name]))
        for told, names in behind.items():
            yield f"{_subject(names, 'is', 'are')} under-replicated: {told}"
        for one in self._snapshot.conflicts:
            yield (
                f"{one.partition} on broker {one.broker_id} refuses to follow: its leader, broker "
                f"{one.leader_id}, lacks records that were committed. "
                "`tidemill cluster repair` shows what to decide"
            )
        for told, moves in _grouped(self._snapshot.moves, told_move).items():
            names = [one.partition for one in moves]
            yield f"{_subject(names, 'is', 'are')} being moved: {told}"

    def _about(self, row: BrokerRow) -> Iterator[str]:
        held = f"{row.replicas} replicas"
        if row.address is None:
            yield f"broker {row.broker_id} is missing and holds {held}: start it"
        elif row.broker_id in self._snapshot.silent:
            yield (
                f"broker {row.broker_id} does not answer at {row.address}: if it has ended, start "
                "it again, others lead as soon as its session ends; if it runs, its log says "
                "whether it reaches its store"
            )
        elif row.broker_id in self._snapshot.fenced:
            waits = f"broker {row.broker_id} waits until the controller lets it in"
            yield self._snapshot.fenced[row.broker_id] or waits
        elif row.broker_id in self._snapshot.unhearing:
            yield (
                f"broker {row.broker_id} gets no answer from the controller, broker "
                f"{self._snapshot.controller_id}: look at the network between their INTERNAL "
                "addresses"
            )
        elif row.broker_id in self._snapshot.draining:
            left = f"{held} are still there" if row.replicas else "it is empty and may be stopped"
            yield f"broker {row.broker_id} is being drained: {left}"

    def _offline_advice(self, state: PartitionInfo) -> str:
        waiting = [str(one) for one in sorted(state.replicas) if one not in self._live]
        if waiting:
            return f"start broker {', '.join(waiting)}"
        return "`tidemill cluster elect unclean` elects a replica that may lack records"


_Group = TypeVar("_Group")


def _grouped(
    items: Sequence[_Group], told: Callable[[_Group], str]
) -> Mapping[str, Sequence[_Group]]:
    """Those of which the same can be told: a broker that is gone is one sentence."""
    found: dict[str, list[_Group]] = {}
    for one in items:
        found.setdefault(told(one), []).append(one)
    return found


def _subject(names: Sequence[TopicPartition], one: str, several: str) -> str:
    return f"{listed(names, _NAMES_MAX)} {one if len(names) == 1 else several}"


def _told_behind(state: PartitionInfo) -> str:
    behind = sorted(one for one in state.replicas if one not in state.isr)
    verb = "is" if len(behind) == 1 else "are"
    return f"broker {', '.join(map(str, behind))} {verb} not in sync"


def told_move(move: Reassignment) -> str:
    """Who comes and who goes."""
    parts = [("to", move.adding), ("off", move.removing)]
    return ", ".join(f"{way} broker {', '.join(map(str, ids))}" for way, ids in parts if ids)


def cluster_facts(snapshot: ClusterSnapshot) -> dict[str, Any]:
    """The cluster for JSON."""
    health = ClusterHealth(snapshot)
    return {
        "cluster_id": snapshot.cluster_id,
        "controller": snapshot.controller_id,
        "brokers": [
            {
                "broker": row.broker_id,
                "address": row.address,
                "rack": row.rack,
                "leads": row.leads,
                "replicas": row.replicas,
                "in_sync": row.in_sync,
                "role": row.role,
            }
            for row in health.rows()
        ],
        "partitions": len(health.partitions),
        "offline": [str(name) for name in health.offline],
        "under_replicated": [str(name) for name in health.under_replicated],
        "not_preferred": [str(name) for name in health.not_preferred],
        "silent": sorted(snapshot.silent),
        "unhearing": sorted(snapshot.unhearing),
        "fenced": sorted(snapshot.fenced),
        "kept_out": [
            {"broker": broker_id, "because": why}
            for broker_id, why in sorted(snapshot.fenced.items())
            if why
        ],
        "features": dict(snapshot.levels),
        "draining": sorted(snapshot.draining),
        "refused_cuts": [
            {"partition": str(one.partition), "broker": one.broker_id, "leader": one.leader_id}
            for one in snapshot.conflicts
        ],
        "moves": [
            {
                "partition": str(move.partition),
                "replicas": move.replicas,
                "adding": move.adding,
                "removing": move.removing,
            }
            for move in snapshot.moves
        ],
    }


def print_cluster(snapshot: ClusterSnapshot) -> None:
    """Print the cluster for people."""
    health = ClusterHealth(snapshot)
    click.echo(
        f"cluster {escape(snapshot.cluster_id)}, {len(health.partitions)} partitions: "
        f"{len(health.offline)} without a leader, {len(health.under_replicated)} under-replicated, "
        f"{len(health.not_preferred)} not led by their first replica, "
        f"{len(snapshot.moves)} being moved"
    )
    print_table(
        _COLUMNS,
        [
            (row.broker_id, row.address, row.rack, row.leads, row.replicas, row.in_sync, row.role)
            for row in health.rows()
        ],
    )
    if snapshot.levels:
        shown = (f"{escape(name)} {level}" for name, level in sorted(snapshot.levels.items()))
        click.echo(f"features: {', '.join(shown)}")
    sentences = list(health.sentences())
    for sentence in sentences[:_SENTENCES_MAX]:
        click.echo(escape(sentence))
    if len(sentences) > _SENTENCES_MAX:
        click.echo(f"... {len(sentences) - _SENTENCES_MAX} more")
