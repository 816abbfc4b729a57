"""A cluster around one partition as a value, and what must hold in it (`replica_model.py`)."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.frozen_broker import Broker, Log, Meta
from tidemill.core.ids import NO_LEADER
from tidemill.metadata.image.isr_proposal import IsrProposal
from tidemill.metadata.rules.log_ends import LogEnd, LogEndQuestion

__all__ = [
    "AT_ONCE",
    "NEVER",
    "SOMETIME",
    "Budget",
    "Fetch",
    "Proposal",
    "State",
    "Told",
    "World",
    "broken_promise",
    "still_counted_on",
]

AT_ONCE, SOMETIME, NEVER = "at once", "sometime", "never"
"""When what is appended is flushed."""


class Budget(NamedTuple):
    """How much may still happen."""

    appends: int = 1
    crashes: int = 0
    """Of processes: the page cache stays."""
    power_losses: int = 0
    new_disks: int = 0
    clean_stops: int = 0
    late: int = 0
    """Fetches and proposals that stay on their way."""


class Fetch(NamedTuple):
    """Of a follower, on its way."""

    sender: int
    life: int
    leader: int
    leader_epoch: int
    offset: int
    flushed: int
    last_epoch: int


class Proposal(NamedTuple):
    """Of a leader, on its way to the controller; nobody waits for the answer any more."""

    sender: int
    life: int
    proposed: IsrProposal


Told = tuple[tuple[LogEndQuestion, LogEnd], ...]


class State(NamedTuple):
    meta: Meta
    brokers: tuple[Broker, ...]
    told: Told
    late: tuple[Fetch | Proposal, ...]
    readable: Log
    """What was below the mark of any leader, as far as anybody that counts still has it."""
    acknowledged: Log
    mark: tuple[int, int]
    """The newest epoch in which somebody has led, and the highest mark in it."""
    budget: Budget
    fault: str = ""


class World(NamedTuple):
    """What a cluster is like, to keep the states few that a question needs."""

    replicas: int = 3
    isr: tuple[int, ...] | None = None
    """At first; None: all."""
    min_isr: int = 1
    flushes: str = AT_ONCE
    records: int = 0
    """Already readable, and on all replicas, when it begins."""
    hears_at_once: bool = False
    """Every broker hears at once of what the controller has written."""


def still_counted_on(state: State) -> State:
    """If nobody is certain to have everything, what none of the rest has was lost for good."""
    partition, brokers = state.meta.partition, state.brokers
    certain = {*partition.isr, *partition.elr}
    if any(not has_lost(state, one) for one in certain):
        return state
    counted = {*certain, *partition.suspects} or {partition.last_known_leader}
    # With a new disk it is not counted on, whatever it has fetched before that is known.
    same = [one for one in counted if brokers[one].disk == state.meta.members[one].disk]
    copies = [brokers[one].copy for one in same if one != NO_LEADER]
    kept = max((_common(one.log, state.readable) for one in copies), default=0)
    safe = max((_common(one.log, state.acknowledged) for one in copies), default=0)
    return state._replace(readable=state.readable[:kept], acknowledged=state.acknowledged[:safe])


def broken_promise(state: State) -> str:
    """What is wrong in a state, if anything."""
    if state.fault:
        return state.fault
    partition = state.meta.partition
    readable, safe = len(state.readable), len(state.acknowledged)
    for one in {*partition.isr, *partition.elr}:
        broker = state.brokers[one]
        if has_lost(state, one):
            continue
        copy = broker.copy
        if copy.log[:readable] != state.readable:
            return f"I12, I14: {one} may lead, and lacks what was readable"
        if copy.log[: copy.flushed][:safe] != state.acknowledged:
            return f"I14: {one} may lead, and has not flushed what was acknowledged"
    return ""


def has_lost(state: State, one: int) -> bool:
    """Whether it has lost records, and the controller does not know it yet."""
    return state.brokers[one].lost_in >= state.meta.members[one].epoch


def _common(one: Log, other: Log) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count
