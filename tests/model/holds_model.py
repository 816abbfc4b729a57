"""All interleavings of a small cluster around one partition with held records, with real books.

Two replicas and a third that comes without a log. The leader takes in holds, releases what is due,
cancels, carries, and lets files go; followers fetch one batch at a time; each replica flushes when
it likes. A *cut* is an election, after which the leader before throws away what it alone had, or a
blackout, in which everyone loses what was not flushed. Each batch has one record and is a file of
its own, so any start of a file is possible. Bytes, events, floors and replays are the real code's.

Checked in every state, for every replica that may be elected:

- its book, folded from the files that it has, is what the whole log says by definition, and the
  copies of all that is open are in those files (I45: nothing is lost);
- no ticket has two ends in its log (I32: one copy), and none was released before its time (I31);
- it has all that was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

from tests.model.exploration import Broken, visit_all
from tidemill.delivery.holds.copies.own_batches import HeldCopy, carried_batch, release_batch
from tidemill.delivery.holds.events import HoldEvent, events_of
from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.wire import header_names as names
from tidemill.wire.batch import assign_offsets, read_header
from tidemill.wire.marks import veil
from tidemill.wire.records import Header, Record, build_batch
from tidemill.wire.transaction_marker import TransactionMarker, build_marker

__all__ = ["Broken", "Budget", "HoldRules", "explore", "real_events", "wander"]

DELAY_MS = 1
PRODUCER_ID = 7
BYTES_MAX = 1 << 20


class Batch(NamedTuple):
    """One batch of the log, of one record."""

    kind: str
    """held, begun (held in a transaction), forwarded, cancel, release, carried, commit, abort."""
    epoch: int
    """Of the leader that wrote it: with the offset it names the batch."""
    ticket: int = -1
    stamp_ms: int = 0
    """When it was taken in; of a carried copy the due time."""


Log = tuple[Batch, ...]


class Replica(NamedTuple):
    log: Log
    """All batches that it ever had, so that the truth stays known."""
    start: int
    """The files before are gone."""
    flushed: int


class Budget(NamedTuple):
    """How much may still happen."""

    holds: tuple[str, ...] = ("held",)
    """The kinds of the records that clients send, in this order."""
    cuts: int = 2
    carries: int = 0
    cancels: int = 0
    newcomers: int = 0
    ticks: int = 1


class State(NamedTuple):
    leader: int
    epoch: int
    isr: tuple[int, ...]
    replicas: tuple[Replica, ...]
    log_start: int
    now_ms: int
    acked: Log
    """The longest prefix that was ever flushed on all in-sync replicas."""
    budget: Budget


@cache
def _bytes_of(offset: int, batch: Batch) -> bytes:
    """The real bytes of a batch."""
    hold = Hold(batch.ticket, batch.stamp_ms, Axis.STEADY, offset, 1)
    request = (names.DELAY_MS, b"%d" % DELAY_MS)
    copy = HeldCopy(hold, Record(b"v", headers=[request], timestamp=0))
    ticket: Header = names.TICKET, b"%d" % batch.ticket
    match batch.kind:
        case "held" | "begun":
            data = _client_batch([request], batch)
        case "forwarded":
            data = _client_batch([request, ticket], batch)
        case "cancel":
            data = _client_batch([(names.COMMAND, b"cancel"), (names.TARGET, ticket[1])], batch)
        case "release":
            data = release_batch([copy], now_ms=0)
        case "carried":
            data = carried_batch([copy], now_ms=0, stamp_ms=0)
        case _:
            marker = TransactionMarker(batch.kind == "commit", 0, 0, 0)
            data = build_marker(marker, producer_id=PRODUCER_ID, producer_epoch=0, timestamp=0)
    assign_offsets(data, offset, batch.epoch)
    return bytes(data)


def _client_batch(headers: Sequence[Header], batch: Batch) -> bytearray:
    is_begun = batch.kind == "begun"
    data = build_batch(
        [Record(b"v", headers=headers, timestamp=0)],
        producer_id=PRODUCER_ID if is_begun else -1,
        producer_epoch=0 if is_begun else -1,
        base_sequence=0 if is_begun else -1,
        transactional=is_begun,
    )
    veil(data, read_header(data), stamp_ms=batch.stamp_ms)
    return data


@cache
def real_events(offset: int, batch: Batch, _now_ms: int) -> list[HoldEvent]:
    """The events of a batch, whenever it is read."""
    data = _bytes_of(offset, batch)
    return events_of(data, read_header(data))


def _fold_files(log: Log, start: int, now_ms: int, rules: HoldRules) -> HoldBook:
    book = HoldBook()
    for offset in range(start, len(log)):
        book.fold(rules.events(offset, log[offset], now_ms), offset=offset + 1)
    return book


@dataclass(frozen=True, slots=True)
class HoldRules:
    """What a replica does; a mutant replaces one of them."""

    events: Callable[[int, Batch, int], list[HoldEvent]] = real_events
    floor: Callable[[HoldBook], int | None] = HoldBook.floor
    follower_keeps: Callable[[int, int], int] = min
    """From where a follower keeps files, of the leader's floor and the log start."""
    newcomer_starts: Callable[[int, int], int] = min
    """From where a new replica copies, of the same two."""
    takeover: Callable[[Log, int, int, HoldRules], HoldBook] = _fold_files
    """The book of a new leader."""


@cache
def _truth(log: Log) -> dict[int, tuple[int, int]]:
    """Open tickets, each with its newest copy and due time: by definition, without a state."""
    found: dict[int, tuple[int, int]] = {}
    for offset, batch in enumerate(log):
        if batch.kind in ("held", "forwarded", "begun"):
            found[offset] = offset, batch.stamp_ms + DELAY_MS
        elif batch.kind == "carried":
            found[batch.ticket] = offset, batch.stamp_ms
        elif batch.kind in ("release", "cancel"):
            found.pop(batch.ticket, None)
    later = [(offset, _decision(log[offset:])) for offset in found if log[offset].kind == "begun"]
    for offset, decision in later:
        if decision != "commit":
            del found[offset]
    return found


def _decision(log: Log) -> str | None:
    return next((batch.kind for batch in log if batch.kind in ("commit", "abort")), None)


def _common(one: Log, other: Log) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


class LeaderView(NamedTuple):
    """What the leader's book says."""

    oldest: Hold | None
    due: Hold | None
    floor: int
    """The end of the log if nothing must stay."""


class Model:
    """The steps that are possible in a state."""

    def __init__(self, rules: HoldRules) -> None:
        self._rules = rules
        self._views: dict[tuple[Log, int, int, int], LeaderView] = {}
        self._known: dict[tuple[Log, int, int], dict[int, tuple[int, int]]] = {}

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._produce(state)
        yield from self._release(state)
        yield from self._command(state)
        yield from self._let_go(state)
        for one in range(len(state.replicas)):
            yield from self._follow(state, one)
            yield from self._flush(state, one)
        yield from self._cut(state)
        budget = state.budget
        if budget.ticks:
            ticked = budget._replace(ticks=budget.ticks - 1)
            yield "time passes", state._replace(now_ms=state.now_ms + 1, budget=ticked)
        if budget.newcomers:
            replicas = (*state.replicas, Replica((), 0, 0))
            come = budget._replace(newcomers=budget.newcomers - 1)
            yield "a replica comes", state._replace(replicas=replicas, budget=come)

    # --- the leader ------------------------------------------------------------------------------

    def _view(self, state: State) -> LeaderView:
        led, durable = state.replicas[state.leader], _durable(state)
        key = led.log, led.start, state.now_ms, durable
        view = self._views.get(key)
        if view is None:
            book = self._rules.takeover(led.log, led.start, state.now_ms, self._rules)
            book.settle(durable)
            due = book.due(wall_ms=0, steady_ms=state.now_ms, count_max=1, bytes_max=BYTES_MAX)
            held = next(book.held(), None)
            floor = self._rules.floor(book)
            floor = len(led.log) if floor is None else floor
            view = self._views[key] = LeaderView(held, due[0] if due else None, floor)
        return view

    def _append(self, state: State, batch: Batch, budget: Budget | None = None) -> State:
        led = state.replicas[state.leader]
        grown = _with(state, state.leader, led._replace(log=(*led.log, batch)))
        return grown if budget is None else grown._replace(budget=budget)

    def _produce(self, state: State) -> Iterator[tuple[str, State]]:
        holds = state.budget.holds
        if not holds:
            return
        led = state.replicas[state.leader]
        left = state.budget._replace(holds=holds[1:])
        first = next(iter(_truth(led.log)), 0)  # whose ticket a client forwards
        ticket = first if holds[0] == "forwarded" else -1
        batch = Batch(holds[0], state.epoch, ticket, state.now_ms)
        yield f"a client sends {holds[0]}", self._append(state, batch, left)

    def _release(self, state: State) -> Iterator[tuple[str, State]]:
        due = self._view(state).due
        if due is not None:
            batch = Batch("release", state.epoch, due.ticket, state.now_ms)
            yield f"{due.ticket} is released", self._append(state, batch)

    def _command(self, state: State) -> Iterator[tuple[str, State]]:
        held, budget = self._view(state).oldest, state.budget
        if held is not None and budget.cancels:
            batch = Batch("cancel", state.epoch, held.ticket)
            left = budget._replace(cancels=budget.cancels - 1)
            yield f"{held.ticket} is cancelled", self._append(state, batch, left)
        if held is not None and budget.carries:
            batch = Batch("carried", state.epoch, held.ticket, held.due_ms)
            left = budget._replace(carries=budget.carries - 1)
            yield f"{held.ticket} is carried", self._append(state, batch, left)
        log = state.replicas[state.leader].log
        for offset, batch in enumerate(log):
            if batch.kind == "begun" and _decision(log[offset:]) is None:
                for kind in ("commit", "abort"):
                    yield f"{kind} of {offset}", self._append(state, Batch(kind, state.epoch))

    def _let_go(self, state: State) -> Iterator[tuple[str, State]]:
        """All that is committed is too old: the log start moves there, files go if they may."""
        led = state.replicas[state.leader]
        log_start = max(state.log_start, _mark(state))
        start = max(led.start, min(log_start, self._view(state).floor))
        if (start, log_start) != (led.start, state.log_start):
            after = _with(state, state.leader, led._replace(start=start))
            yield f"files below {start} go", after._replace(log_start=log_start)

    # --- followers -------------------------------------------------------------------------------

    def _follow(self, state: State, one: int) -> Iterator[tuple[str, State]]:
        if one == state.leader:
            return
        led, own = state.replicas[state.leader], state.replicas[one]
        common = _common(own.log, led.log)
        floor = self._view(state).floor
        begin = max(led.start, self._rules.newcomer_starts(floor, state.log_start))
        if common < len(own.log):
            yield f"{one} cuts to {common}", self._with_cut(state, one, common)
        elif len(own.log) < max(led.start, begin if not own.log else 0):
            fresh = Replica(led.log[:begin], begin, begin)
            yield f"{one} begins at {begin}", _with(state, one, fresh)
        elif len(own.log) < len(led.log):
            fetched = own._replace(log=led.log[: common + 1])
            yield f"{one} fetches", _with(state, one, fetched)
        else:
            yield from self._catch_up(state, one, floor)

    def _catch_up(self, state: State, one: int, floor: int) -> Iterator[tuple[str, State]]:
        """A fetch that finds nothing new, but what may go."""
        own, durable = state.replicas[one], _durable(state)
        keeps = max(own.start, self._rules.follower_keeps(floor, state.log_start))
        if own.flushed < durable:
            return
        if keeps > own.start:
            yield f"{one} lets go below {keeps}", _with(state, one, own._replace(start=keeps))
        if one not in state.isr:
            yield f"{one} is in sync", state._replace(isr=tuple(sorted((*state.isr, one))))

    def _flush(self, state: State, one: int) -> Iterator[tuple[str, State]]:
        own = state.replicas[one]
        if own.flushed < len(own.log):
            yield f"{one} flushes", _with(state, one, own._replace(flushed=len(own.log)))

    # --- cuts ------------------------------------------------------------------------------------

    def _cut(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.budget.cuts:
            return
        budget = state.budget._replace(cuts=state.budget.cuts - 1)
        ahead = state._replace(epoch=state.epoch + 1, budget=budget)
        others = tuple(one for one in state.isr if one != state.leader)
        for one in others:
            yield f"{one} is elected", ahead._replace(leader=one, isr=others)
        after = ahead
        for one, own in enumerate(state.replicas):
            if own.flushed < len(own.log):
                after = self._with_cut(after, one, own.flushed)
        if after is not ahead:
            yield "blackout", after

    def _with_cut(self, state: State, one: int, offset: int) -> State:
        """The replica cut at `offset`: its book replays from where it says."""
        own = state.replicas[one]
        book = _fold_files(own.log, own.start, state.now_ms, self._rules)
        if own.flushed >= _durable(state):
            book.settle(_durable(state))
        start = max(own.start, book.replay_from(offset))
        book.cut(offset)
        log = own.log[:offset]
        for at in range(start, offset):
            book.fold(self._rules.events(at, log[at], state.now_ms), offset=at + 1)
        expected = _fold_files(log, own.start, state.now_ms, self._rules)
        if list(book.held()) != list(expected.held()):
            raise Broken(f"after the cut of {one} at {offset} the replay finds other holds")
        cut = Replica(log, min(own.start, offset), min(own.flushed, offset))
        return _with(state, one, cut)._replace(log_start=min(state.log_start, offset))

    # --- promises --------------------------------------------------------------------------------

    def fault(self, state: State) -> str | None:
        for one in state.isr:
            own = state.replicas[one]
            if own.log[: len(state.acked)] != state.acked:
                return f"{one} lacks what was acknowledged"
            fault = _fault_of_log(own.log)
            if fault is not None:
                return f"{one}: {fault}"
            held, truth = self._held(own, state.now_ms), _truth(own.log)
            if held != truth:
                return f"{one} holds {held}, its log says {truth}"
        return None

    def _held(self, own: Replica, now_ms: int) -> dict[int, tuple[int, int]]:
        key = own.log, own.start, now_ms
        held = self._known.get(key)
        if held is None:
            book = self._rules.takeover(own.log, own.start, now_ms, self._rules)
            held = {hold.ticket: (hold.offset, hold.due_ms) for hold in book.held()}
            self._known[key] = held
        return held


@cache
def _fault_of_log(log: Log) -> str | None:
    ended: set[int] = set()
    for batch in log:
        if batch.kind in ("release", "cancel"):
            if batch.ticket in ended:
                return f"ticket {batch.ticket} has two ends"
            ended.add(batch.ticket)
        if batch.kind == "release" and batch.stamp_ms < log[batch.ticket].stamp_ms + DELAY_MS:
            return f"ticket {batch.ticket} was released early"
    return None


def _with(state: State, one: int, replica: Replica) -> State:
    replicas = (*state.replicas[:one], replica, *state.replicas[one + 1 :])
    return state._replace(replicas=replicas)


def _durable(state: State) -> int:
    """What every in-sync replica has flushed of the leader's log."""
    log = state.replicas[state.leader].log
    owns = [state.replicas[one] for one in state.isr]
    return min(min(own.flushed, _common(own.log, log)) for own in owns)


def _mark(state: State) -> int:
    log = state.replicas[state.leader].log
    return min(_common(state.replicas[one].log, log) for one in state.isr)


def _acknowledged(state: State) -> State:
    durable = _durable(state)
    if durable <= len(state.acked):
        return state
    return state._replace(acked=state.replicas[state.leader].log[:durable])


def _first(budget: Budget) -> State:
    return State(0, 0, (0, 1), (Replica((), 0, 0),) * 2, 0, 0, (), budget)


def explore(rules: HoldRules, budget: Budget, *, states_max: int) -> int:
    """Visit every state, breadth first; how many there are. Raises Broken."""
    model = Model(rules)

    def steps(state: State) -> Iterator[tuple[str, State]]:
        return ((name, _acknowledged(after)) for name, after in model.steps(state))

    return visit_all(_first(budget), steps, model.fault, states_max=states_max)


def wander(rules: HoldRules, budget: Budget, *, walks: int, steps_max: int) -> int:
    """Take random steps where the states are too many to visit; how many were seen."""
    model, rng = Model(rules), Random(1)
    seen: set[State] = set()
    for _ in range(walks):
        state = _first(budget)
        names: list[str] = []
        for _ in range(steps_max):
            steps = list(model.steps(state))
            if not steps:
                break
            name, state = rng.choice(steps)
            state = _acknowledged(state)
            names.append(name)
            seen.add(state)
            fault = model.fault(state)
            if fault is not None:
                raise Broken("; ".join([*names, fault]))
    return len(seen)
