"""All interleavings of three brokers that lead, vouch and are elected, with the real rules inside.

Brokers lose their leases, fetches and answers take as long as they like, connections end, and the
controller elects another broker whenever the leader it knows has no lease. Brokers hear of that
late. A follower may be restarted and forget for whom it has vouched. Times are in steps of 0.6 s,
relative to now, and what has run out is forgotten: so the states are finite without a bound for the
time.

Checked in every state: at most one broker acts as the leader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tests.model.exploration import Broken, visit_all
from tidemill.replication.vouching.silence import Silence
from tidemill.replication.vouching.vouch import NO_VOUCH, Vouch

__all__ = ["Broken", "Budget", "Rules", "explore"]

IDS = (0, 1, 2)
STEP_S = 0.6
OVER_S = -1.2
"""A time so long ago has no effect any more."""
NOBODY = -1
LINKS_MAX = 100_000
"""Different links whose changes are kept: most states differ in one of nine."""
RESTARTED = 1
"""The one that may be restarted, a follower at first: without a leader's memory nobody acts."""


class Budget(NamedTuple):
    """How much may still happen."""

    elections: int = 2
    lost_leases: int = 2
    breaks: int = 1
    restarts: int = 1
    sleeps: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """What brokers do; a mutant replaces one of them."""

    counts_arrival: bool = False
    """A vouch counts from the arrival of the fetch."""
    is_silent: bool = True
    remembers_all: bool = True
    """Not only the last leader that was followed."""
    joins_while_silent: bool = False
    all_vouch: bool = True
    """Also those that are eligible but not in sync."""
    starts_silent: bool = True


class Link(NamedTuple):
    """A follower's connection to a leader, and what both sides know of it."""

    phase: str = ""
    """The one message: a `first` or `next` fetch, `asked` at the leader, or an `answer`."""
    epoch: int = NOBODY
    """Of the fetch."""
    slot_epoch: int = NOBODY
    """As the leader knows the follower."""
    sent_at: float = NO_VOUCH
    """The answer that is not confirmed."""
    until: float = NO_VOUCH
    answered_at: float = NO_VOUCH
    """When the follower took in the last answer."""


class Member(NamedTuple):
    """What one broker knows."""

    epoch: int
    follows: int
    """The leader; itself: it leads."""
    has_lease: bool = True
    is_silent: bool = False
    heard: tuple[tuple[int, float], ...] = ()
    electable: frozenset[int] = frozenset()
    in_sync: int = 1
    lag_s: float = 0.0
    """How long its clock has stood still."""


class State(NamedTuple):
    leader: int
    epoch: int
    isr: frozenset[int]
    elr: frozenset[int]
    members: tuple[Member, ...]
    links: tuple[tuple[Link, ...], ...]
    """By follower and leader."""
    budget: Budget


def _vouch(link: Link) -> Vouch:
    made = Vouch()
    made.until = link.until
    made._sent_at[1] = link.sent_at
    return made


def _silence(member: Member) -> Silence:
    made = Silence(NO_VOUCH)
    made._heard_at = dict(member.heard)
    return made


def _with(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])


def _older(at: float) -> float:
    return at - STEP_S if at - STEP_S > OVER_S else NO_VOUCH


@lru_cache(maxsize=LINKS_MAX)
def _older_link(link: Link) -> Link:
    return link._replace(
        sent_at=_older(link.sent_at),
        until=_older(link.until),
        answered_at=_older(link.answered_at),
    )


def _plain(state: State) -> State:
    """The state without what has no effect any more: it would only multiply states."""
    rows = tuple(
        tuple(_plain_link(state, one, leader, link) for leader, link in enumerate(row))
        for one, row in enumerate(state.links)
    )
    return state._replace(links=rows)


def _plain_link(state: State, one: int, leader: int, link: Link) -> Link:
    follower, led = state.members[one], state.members[leader]
    leads = led.follows == leader
    return _with_effect(
        link,
        is_followed=follower.follows == leader and follower.epoch == link.epoch,
        is_served=leads and led.epoch == link.epoch,
        is_known=leads and led.epoch == link.slot_epoch,
        now=-led.lag_s,
    )


@lru_cache(maxsize=LINKS_MAX)
def _with_effect(
    link: Link, *, is_followed: bool, is_served: bool, is_known: bool, now: float
) -> Link:
    if not is_followed:
        link = link._replace(answered_at=NO_VOUCH)
        if link.phase in ("asked", "answer"):
            link = link._replace(phase="")
    if not is_known:
        link = link._replace(slot_epoch=NOBODY, until=NO_VOUCH)
    if not is_followed and not is_served:
        link = link._replace(phase="", epoch=NOBODY)
    if link.phase not in ("answer", "next"):
        link = link._replace(sent_at=NO_VOUCH)
    if link.until <= now:
        link = link._replace(until=NO_VOUCH)
    return link


class Model:
    """The steps that are possible in a state; now is 0.0."""

    def __init__(self, rules: Rules, *, least_in_sync: int) -> None:
        self._rules = rules
        self._least = least_in_sync

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield "time passes", self._pass(state)
        yield from self._elect(state)
        for one in IDS:
            yield from self._broker_steps(state, one)
            for leader in IDS:
                if leader != one:
                    yield from self._link_steps(state, one, leader)

    def acting(self, state: State) -> list[int]:
        return [one for one in IDS if self._acts(state, one)]

    def _acts(self, state: State, one: int) -> bool:
        member = state.members[one]
        if member.follows != one or (member.is_silent and self._still_silent(member)):
            return False
        return member.has_lease or self._is_vouched(state, one)

    def _still_silent(self, member: Member) -> bool:
        return self._rules.is_silent and _silence(member).holds(0.0)

    def _is_vouched(self, state: State, one: int) -> bool:
        member = state.members[one]
        if member.in_sync < 2:
            return False
        now = -member.lag_s
        for other in member.electable - {one}:
            link = state.links[other][one]
            if link.slot_epoch != member.epoch or now >= link.until:
                return False
        return True

    # --- changes of a state ----------------------------------------------------------------------

    def _member(self, state: State, one: int, **changes: object) -> State:
        changed = state.members[one]._replace(**changes)
        return state._replace(members=_with(state.members, one, changed))

    def _link(self, state: State, one: int, leader: int, link: Link) -> State:
        row = _with(state.links[one], leader, link)
        return state._replace(links=_with(state.links, one, row))

    def _spend(self, state: State, kind: str) -> State:
        left = getattr(state.budget, kind) - 1
        return state._replace(budget=state.budget._replace(**{kind: left}))

    def _pass(self, state: State) -> State:
        members = tuple(
            one._replace(
                heard=tuple((who, at) for who, old in one.heard if (at := _older(old)) > NO_VOUCH)
            )
            for one in state.members
        )
        links = tuple(tuple(map(_older_link, row)) for row in state.links)
        return state._replace(members=members, links=links)

    # --- the controller --------------------------------------------------------------------------

    def _elect(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.budget.elections or state.members[state.leader].has_lease:
            return
        rest = state.isr - {state.leader}
        for elected in sorted(rest or state.elr - {state.leader}):
            isr = rest or frozenset({elected})
            below = len(isr) < self._least
            elr = (state.elr | {state.leader}) - isr if below else frozenset()
            after = state._replace(leader=elected, epoch=state.epoch + 1, isr=isr, elr=elr)
            yield f"{elected} is elected", self._spend(after, "elections")
        if not rest and not state.elr:
            return
        # The leader's successor may also be dead: it leaves, and its turn does not come.
        for gone in sorted(rest):
            isr = state.isr - {gone}
            if len(isr) > 1 or state.elr:
                below = len(isr) < self._least
                elr = state.elr | {gone} if below else frozenset()
                yield f"{gone} leaves", self._spend(state._replace(isr=isr, elr=elr), "elections")

    # --- brokers ---------------------------------------------------------------------------------

    def _broker_steps(self, state: State, one: int) -> Iterator[tuple[str, State]]:
        member, budget = state.members[one], state.budget
        if member.epoch < state.epoch:
            yield f"{one} hears of epoch {state.epoch}", self._hear(state, one)
        if member.has_lease and budget.lost_leases:
            lost = self._member(state, one, has_lease=False)
            yield f"{one} loses its lease", self._spend(lost, "lost_leases")
        if budget.sleeps and member.follows == one:
            slept = self._member(state, one, lag_s=member.lag_s + STEP_S)
            yield f"{one} sleeps, its clock too", self._spend(self._pass(slept), "sleeps")
        if budget.restarts and one == RESTARTED:
            yield f"{one} restarts", self._spend(self._restart(state, one), "restarts")
        yield from self._join(state, one)

    def _hear(self, state: State, one: int) -> State:
        member = state.members[one]
        silence = _silence(member)
        if not self._rules.remembers_all:
            silence._heard_at.clear()
        if member.follows not in (one, NOBODY):
            silence.heard(member.follows, state.links[one][member.follows].answered_at)
        heard = tuple(sorted(pair for pair in silence._heard_at.items() if pair[1] > NO_VOUCH))
        return self._member(
            state,
            one,
            epoch=state.epoch,
            follows=state.leader,
            is_silent=state.leader == one,
            heard=heard,
            electable=state.isr | state.elr if self._rules.all_vouch else state.isr,
            in_sync=len(state.isr),
        )

    def _restart(self, state: State, one: int) -> State:
        """It comes back with its log, and knows nothing else."""
        silence = Silence(0.0 if self._rules.starts_silent else NO_VOUCH)
        heard = tuple(pair for pair in silence._heard_at.items() if pair[1] > NO_VOUCH)
        fresh = Member(NOBODY, NOBODY, state.members[one].has_lease, heard=heard)
        state = state._replace(members=_with(state.members, one, fresh))
        for other in IDS:
            if other != one:  # its leader may not have noticed yet
                left = state.links[one][other]._replace(phase="", answered_at=NO_VOUCH)
                state = self._link(state, one, other, left)
                state = self._link(state, other, one, Link())
        if state.leader == one:  # one life, one epoch
            state = state._replace(epoch=state.epoch + 1)
        return state

    def _join(self, state: State, one: int) -> Iterator[tuple[str, State]]:
        member = state.members[one]
        is_current = member.follows == one == state.leader and member.epoch == state.epoch
        if not is_current or not member.has_lease:
            return
        if not self._rules.joins_while_silent and member.is_silent and self._still_silent(member):
            return
        for other in set(IDS) - state.isr:
            if state.links[other][one].slot_epoch == member.epoch:
                isr = state.isr | {other}
                elr = frozenset() if len(isr) >= self._least else state.elr - {other}
                joined = self._member(
                    state, one, electable=member.electable | isr, in_sync=len(isr)
                )
                yield f"{other} joins", joined._replace(isr=isr, elr=elr)

    # --- fetches and answers ---------------------------------------------------------------------

    def _link_steps(self, state: State, one: int, leader: int) -> Iterator[tuple[str, State]]:
        link, member = state.links[one][leader], state.members[one]
        is_followed = member.follows == leader
        if not link.phase and is_followed:
            opened = link._replace(phase="first", epoch=member.epoch)
            yield f"{one} connects to {leader}", self._link(state, one, leader, opened)
        if link.phase and state.budget.breaks:
            broken = self._link(state, one, leader, link._replace(phase=""))
            yield f"{one} loses {leader}", self._spend(broken, "breaks")
        if link.phase in ("first", "next"):
            yield f"{one}'s fetch comes to {leader}", self._arrive(state, one, leader)
        elif link.phase == "asked":
            vouch = _vouch(link)
            vouch.answered(1, -state.members[leader].lag_s)
            made = link._replace(phase="answer", sent_at=vouch._sent_at[1])
            yield f"{leader} answers {one}", self._link(state, one, leader, made)
        elif link.phase == "answer" and is_followed and link.epoch == member.epoch:
            taken = link._replace(phase="next", answered_at=0.0)
            yield f"{one} takes in", self._link(state, one, leader, taken)

    def _arrive(self, state: State, one: int, leader: int) -> State:
        link, led = state.links[one][leader], state.members[leader]
        if led.follows != leader or led.epoch != link.epoch:
            refused = Link(answered_at=link.answered_at)
            return self._link(state, one, leader, refused)
        if link.phase == "first":
            link = link._replace(sent_at=NO_VOUCH, until=NO_VOUCH)
        vouch = _vouch(link)
        if link.phase == "next":
            vouch.confirmed(1)
            if self._rules.counts_arrival:
                vouch = Vouch()
                vouch.answered(1, -led.lag_s)
                vouch.confirmed(1)
        if led.is_silent:
            silence = _silence(led)
            silence.has_fetched(one)
            state = self._member(state, leader, heard=tuple(sorted(silence._heard_at.items())))
        known = link._replace(
            phase="asked", slot_epoch=link.epoch, sent_at=NO_VOUCH, until=vouch.until
        )
        return self._link(state, one, leader, known)


def _first(rules: Rules, isr: tuple[int, ...], elr: tuple[int, ...], budget: Budget) -> State:
    """Broker 0 leads; of the others, those that count follow it."""
    electable = frozenset((*isr, *elr) if rules.all_vouch else isr)
    leads = Member(0, 0, electable=electable, in_sync=len(isr))
    others = [Member(0, 0 if one in (*isr, *elr) else NOBODY) for one in IDS[1:]]
    return State(
        leader=0,
        epoch=0,
        isr=frozenset(isr),
        elr=frozenset(elr),
        members=(leads, *others),
        links=((Link(),) * 3,) * 3,
        budget=budget,
    )


def explore(
    rules: Rules,
    budget: Budget,
    *,
    isr: tuple[int, ...],
    elr: tuple[int, ...] = (),
    least_in_sync: int = 1,
    states_max: int,
) -> int:
    """Visit every state, breadth first; how many there are. Raises Broken."""
    model = Model(rules, least_in_sync=least_in_sync)

    def steps(state: State) -> Iterator[tuple[str, State]]:
        return ((name, _plain(after)) for name, after in model.steps(state))

    def fault(state: State) -> str | None:
        return "two brokers act" if len(model.acting(state)) > 1 else None

    return visit_all(_first(rules, isr, elr, budget), steps, fault, states_max=states_max)
