"""All interleavings of a small cluster around one partition, with the real `InSync` in its leaders.

Three replicas, a controller, and messages that arrive late, twice over or never. Leaders append,
followers fetch one record at a time, leaders propose sets and move their marks; the controller
accepts by compare-and-set, and elects another member of its in-sync set at any time. A leader that
was replaced goes on until it hears of it.

Checked in every state: what any leader has ever put below its mark is in the log of every replica
that the controller holds for in sync, since each of them may be elected next (I12, I14).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.exploration import Broken, visit_all
from tidemill.core.errors import ErrorCode
from tidemill.replication.in_sync import InSync
from tidemill.replication.isr import FollowerPosition

__all__ = ["Broken", "Budget", "Rules", "explore"]

IDS = (0, 1, 2)
Log = tuple[int, ...]
"""The epochs of the records: one leader per epoch, so offset and epoch name a record."""


class Budget(NamedTuple):
    """How much may still happen."""

    appends: int = 2
    failovers: int = 2
    unknowns: int = 1
    leavings: int = 1


class Message(NamedTuple):
    """A proposal on its way to the controller."""

    sender: int
    leader_epoch: int
    base: int
    isr: tuple[int, ...]


class Sets(NamedTuple):
    """An `InSync`, as a value."""

    committed: tuple[int, ...]
    partition_epoch: int
    feared: tuple[int, ...] = ()
    is_unsettled: bool = False
    has_unanswered: bool = False
    proposed: tuple[tuple[int, int], ...] | None = None


class Leader(NamedTuple):
    """What a broker that leads, or believes so, knows."""

    epoch: int
    sets: Sets
    positions: tuple[int, int, int]
    start: int
    mark: int
    waits_for: Message | None = None


class Controller(NamedTuple):
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int


class State(NamedTuple):
    controller: Controller
    logs: tuple[Log, Log, Log]
    seen: tuple[int, int, int]
    """The leader epoch that each broker knows of."""
    follows: tuple[int, int, int]
    leaders: tuple[Leader | None, Leader | None, Leader | None]
    messages: frozenset[Message]
    promised: Log
    budget: Budget


@dataclass(frozen=True, slots=True)
class Rules:
    """What a leader does; a mutant replaces one of them."""

    image: Callable[[InSync, tuple[int, ...], int], InSync]
    unanswered: Callable[[InSync, int], None]
    agreed: Callable[[InSync, int, dict[int, FollowerPosition]], int]

    @classmethod
    def real(cls) -> Rules:
        def image(sets: InSync, isr: tuple[int, ...], partition_epoch: int) -> InSync:
            sets.saw(isr, partition_epoch)
            return sets

        return cls(
            image=image,
            unanswered=lambda sets, base: sets.unanswered(base),
            agreed=lambda sets, end, positions: sets.agreed(end, end, positions, 1)[0],
        )


def _thaw(own_id: int, value: Sets) -> InSync:
    made = InSync(own_id, value.committed, value.partition_epoch)
    made._fear(value.feared)
    made.is_unsettled = value.is_unsettled
    made._has_unanswered = value.has_unanswered
    made._proposed = value.proposed
    return made


def _freeze(sets: InSync) -> Sets:
    return Sets(
        sets.committed,
        sets.partition_epoch,
        sets.feared,
        sets.is_unsettled,
        sets._has_unanswered,
        sets._proposed,
    )


def _with(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])


def _common(one: Log, other: Log) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


class Model:
    """The steps that are possible in a state."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for broker in IDS:
            yield from self._image(state, broker)
            led = state.leaders[broker]
            if led is None:
                yield from self._fetch(state, broker)
            else:
                yield from self._append(state, broker, led)
                yield from self._propose(state, broker, led)
                yield from self._time_out(state, broker, led)
        for message in sorted(state.messages):
            yield from self._handle(state, message)
        yield from self._fail_over(state)

    # --- leaders and followers -------------------------------------------------------------------

    def _led(self, state: State, broker: int, led: Leader, **changes: object) -> State:
        """The state with this leader changed and its mark moved as far as it goes."""
        led = led._replace(**changes)
        sets = _thaw(broker, led.sets)
        positions = {
            one: FollowerPosition(led.positions[one], led.positions[one])
            for one in IDS
            if one != broker
        }
        log = state.logs[broker]
        mark = max(led.mark, self._rules.agreed(sets, len(log), positions))
        promised = log[:mark] if mark > len(state.promised) else state.promised
        leaders = _with(state.leaders, broker, led._replace(mark=mark))
        return state._replace(leaders=leaders, promised=promised)

    def _append(self, state: State, broker: int, led: Leader) -> Iterator[tuple[str, State]]:
        if not state.budget.appends:
            return
        logs = _with(state.logs, broker, (*state.logs[broker], led.epoch))
        budget = state.budget._replace(appends=state.budget.appends - 1)
        yield f"{broker} appends", self._led(state._replace(logs=logs, budget=budget), broker, led)

    def _fetch(self, state: State, broker: int) -> Iterator[tuple[str, State]]:
        leader = state.follows[broker]
        led = state.leaders[leader]
        if led is None or led.epoch != state.seen[broker]:
            return
        theirs, own = state.logs[leader], state.logs[broker]
        common = _common(own, theirs)
        fetched = state._replace(logs=_with(state.logs, broker, theirs[: common + 1]))
        if common < len(own):
            yield (
                f"{broker} cuts to {common}",
                state._replace(logs=_with(state.logs, broker, own[:common])),
            )
            return
        positions = _with(led.positions, broker, len(own))
        yield f"{broker} fetches", self._led(fetched, leader, led, positions=positions)

    def _image(self, state: State, broker: int) -> Iterator[tuple[str, State]]:
        """The broker sees what the controller has written, also if it knows it already."""
        controller, led = state.controller, state.leaders[broker]
        if controller.leader_epoch > state.seen[broker]:
            is_leader = controller.leader == broker
            made = self._new_leader(state, controller, broker) if is_leader else None
            yield (
                f"{broker} sees epoch {controller.leader_epoch}",
                state._replace(
                    seen=_with(state.seen, broker, controller.leader_epoch),
                    follows=_with(state.follows, broker, controller.leader),
                    leaders=_with(state.leaders, broker, made),
                ),
            )
        elif led is not None and led.epoch == controller.leader_epoch:
            sets = _thaw(broker, led.sets)
            sets = self._rules.image(sets, controller.isr, controller.partition_epoch)
            yield f"{broker} sees the image", self._led(state, broker, led, sets=_freeze(sets))

    def _new_leader(self, state: State, controller: Controller, broker: int) -> Leader:
        return Leader(
            epoch=controller.leader_epoch,
            sets=Sets(controller.isr, controller.partition_epoch),
            positions=(-1, -1, -1),
            start=len(state.logs[broker]),
            mark=0,
        )

    # --- proposals -------------------------------------------------------------------------------

    def _wanted(self, state: State, led: Leader, broker: int) -> Iterator[tuple[int, ...]]:
        isr = led.sets.committed
        yield isr
        for one in IDS:
            if one not in isr and led.positions[one] >= max(led.mark, led.start):
                yield tuple(sorted((*isr, one)))
            if one in isr and one != broker and state.budget.leavings:
                yield tuple([other for other in isr if other != one])

    def _propose(self, state: State, broker: int, led: Leader) -> Iterator[tuple[str, State]]:
        if led.waits_for is not None:
            return
        for wanted in self._wanted(state, led, broker):
            sets = _thaw(broker, led.sets)
            members = sets.try_next_proposal(tuple([(one, 0) for one in wanted]))
            if members is None:
                continue
            sets.sent(members)
            ids = tuple([one for one, _ in members])
            message = Message(broker, led.epoch, led.sets.partition_epoch, ids)
            is_new = led.sets.proposed is None and len(ids) < len(led.sets.committed)
            budget = state.budget._replace(leavings=state.budget.leavings - is_new)
            sent = state._replace(messages=state.messages | {message}, budget=budget)
            changed = led._replace(sets=_freeze(sets), waits_for=message)
            yield f"{broker} proposes {ids}", self._led(sent, broker, changed)

    def _time_out(self, state: State, broker: int, led: Leader) -> Iterator[tuple[str, State]]:
        """No answer, while the proposal is still on its way."""
        if led.waits_for is not None and state.budget.unknowns:
            yield f"{broker} gets no answer", self._without_answer(state, led.waits_for)

    def _without_answer(self, state: State, message: Message) -> State:
        budget = state.budget._replace(unknowns=state.budget.unknowns - 1)
        state = state._replace(budget=budget)
        led = state.leaders[message.sender]
        assert led is not None
        sets = _thaw(message.sender, led.sets)
        self._rules.unanswered(sets, message.base)
        return self._led(state, message.sender, led, sets=_freeze(sets), waits_for=None)

    def _handle(self, state: State, message: Message) -> Iterator[tuple[str, State]]:
        """The controller gets a proposal; its sender may have given up on it long ago."""
        controller = state.controller
        rest = state._replace(messages=state.messages - {message})
        current = (controller.leader_epoch, controller.partition_epoch)
        if (message.leader_epoch, message.base) != current:
            code = ErrorCode.INVALID_UPDATE_VERSION
            yield f"controller refuses {message}", self._answer(rest, message, code)
            return
        if len(message.isr) > len(controller.isr):
            forbidden = self._answer(rest, message, ErrorCode.INELIGIBLE_REPLICA)
            yield f"controller forbids {message}", forbidden
        made = controller._replace(isr=message.isr, partition_epoch=controller.partition_epoch + 1)
        done = rest._replace(controller=made)
        yield f"controller makes {message}", self._answer(done, message, ErrorCode.NONE)
        if self._waits(done, message) and state.budget.unknowns:
            yield f"controller makes {message}, unheard", self._without_answer(done, message)

    def _waits(self, state: State, message: Message) -> bool:
        led = state.leaders[message.sender]
        return led is not None and led.waits_for == message

    def _answer(self, state: State, message: Message, code: ErrorCode) -> State:
        if not self._waits(state, message):
            return state
        led = state.leaders[message.sender]
        assert led is not None
        sets = _thaw(message.sender, led.sets)
        if code is ErrorCode.NONE:
            sets.accepted(message.base, message.isr, message.base + 1)
        else:
            sets.refused(message.base, code)
        return self._led(state, message.sender, led, sets=_freeze(sets), waits_for=None)

    def _fail_over(self, state: State) -> Iterator[tuple[str, State]]:
        controller = state.controller
        if not state.budget.failovers:
            return
        budget = state.budget._replace(failovers=state.budget.failovers - 1)
        isr = tuple([one for one in controller.isr if one != controller.leader])
        for elected in isr:
            after = Controller(
                elected, controller.leader_epoch + 1, isr, controller.partition_epoch + 1
            )
            yield f"{elected} is elected", state._replace(controller=after, budget=budget)


def _without_dead_messages(state: State) -> State:
    """Forget proposals that can neither be made nor answered: they only multiply states."""
    now = (state.controller.leader_epoch, state.controller.partition_epoch)
    awaited = {led.waits_for for led in state.leaders if led is not None}
    alive = [one for one in state.messages if one[1:3] == now or one in awaited]
    return state if len(alive) == len(state.messages) else state._replace(messages=frozenset(alive))


def _check(state: State) -> bool:
    count = len(state.promised)
    return all(state.logs[one][:count] == state.promised for one in state.controller.isr)


def _first(isr: tuple[int, ...], budget: Budget) -> State:
    controller = Controller(0, 0, isr, 0)
    led = Leader(0, Sets(isr, 0), (-1, -1, -1), 0, 0)
    return State(
        controller=controller,
        logs=((), (), ()),
        seen=(0, 0, 0),
        follows=(0, 0, 0),
        leaders=(led, None, None),
        messages=frozenset(),
        promised=(),
        budget=budget,
    )


def explore(rules: Rules, isr: tuple[int, ...], budget: Budget, *, states_max: int) -> int:
    """Visit every state, breadth first; how many there are. Raises Broken."""
    model = Model(rules)

    def steps(state: State) -> Iterator[tuple[str, State]]:
        return ((name, _without_dead_messages(after)) for name, after in model.steps(state))

    def fault(state: State) -> str | None:
        return None if _check(state) else "acknowledged records are lost"

    return visit_all(_first(isr, budget), steps, fault, states_max=states_max)
