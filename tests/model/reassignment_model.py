"""All interleavings of a small cluster whose replicas are moved, with the real decisions in it.

Three brokers, of which some have the partition at first. Somebody moves the replicas and may change
their mind; brokers die in between and come back with their logs, or are about to stop; all of them
hear late of what the controller has decided. A broker that loses its replica deletes its log.
Proposals of in-sync sets arrive at once: `in_sync_model.py` has those that do not.

Checked in every state:

- I12, I14  whoever the controller may elect without doubt (isr and elr) has all that was promised
- I8        no living broker still answers readers as a leader who knows less than was promised
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

from tests.model.exploration import Broken, visit_all
from tidemill.core.errors import KafkaError
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.rules.election import (
    ElectionRules,
    Live,
    after_isr_change,
    new_partition,
    with_live_brokers,
)
from tidemill.metadata.rules.former_leaders import FormerLeaders
from tidemill.metadata.rules.reassignment import advanced, cancelled, reassigned

__all__ = ["Broken", "Budget", "MoveRules", "explore"]

IDS = (0, 1, 2)
TOPIC_ID = UUID(int=7)
UNKNOWN = -1
Log = tuple[int, ...]
"""The epochs of the records: one leader per epoch, so offset and epoch name a record."""
Targets = tuple[tuple[int, ...] | None, ...]
"""Where the replicas shall go; None: back."""


class Budget(NamedTuple):
    """How much may still happen."""

    targets: Targets
    appends: int = 1
    crashes: int = 1
    stops: int = 0
    """Brokers that say that they are about to stop."""


class View(NamedTuple):
    """What a living broker knows of the partition."""

    image: PartitionImage
    positions: tuple[int, int, int] = (UNKNOWN, UNKNOWN, UNKNOWN)
    start: int = 0
    mark: int = 0


class State(NamedTuple):
    image: PartitionImage
    logs: tuple[Log, Log, Log]
    views: tuple[View | None, View | None, View | None]
    """None: the broker is dead."""
    promised: Log
    budget: Budget
    leaving: frozenset[int] = frozenset()
    """Who is about to stop."""


@dataclass(frozen=True, slots=True)
class MoveRules:
    """What a topic says."""

    min_isr: int = 1


def _with(values: tuple[Any, ...], index: int, value: object) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


class Model:
    """The steps that are possible in a state."""

    def __init__(self, rules: MoveRules) -> None:
        self._rules = rules

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._ask(state)
        yield from self._decide(state)
        for broker in IDS:
            view = state.views[broker]
            if view is None:
                yield f"{broker} returns", self._heard(state, broker)
                continue
            yield from self._die(state, broker)
            yield from self._leave(state, broker)
            if view.image.partition_epoch < state.image.partition_epoch:
                yield f"{broker} hears", self._heard(state, broker)
            if view.image.leader == broker:
                yield from self._append(state, broker, view)
                yield from self._propose(state, broker, view)
            else:
                yield from self._fetch(state, broker, view)

    # --- the controller --------------------------------------------------------------------------

    def _live(self, state: State) -> Live:
        ids = frozenset(one for one in IDS if state.views[one] is not None)
        return Live(ids, ids - state.leaving, ids & state.leaving)

    def _led_lately(self, state: State) -> Collection[int]:
        """Who lives and has not heard that it does not lead any more: a session is not over yet."""
        now = 0.0
        former = FormerLeaders()
        former._until[TOPIC_ID, 0] = {
            one: now + 1.0
            for one, view in enumerate(state.views)
            if view is not None
            and view.image.leader == one
            and (state.image.leader, state.image.leader_epoch) != (one, view.image.leader_epoch)
        }
        return former.of(TOPIC_ID, 0, state.image, now)

    def _ask(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.budget.targets:
            return
        target, *rest = state.budget.targets
        budget = state.budget._replace(targets=tuple(rest))
        led, minimum = self._led_lately(state), self._rules.min_isr
        try:
            if target is None:
                after = cancelled(state.image, self._live(state), minimum, led)
            else:
                live = self._live(state).brokers
                after = reassigned(state.image, target, live, minimum, led)
        except KafkaError:
            yield f"{target} is refused", state._replace(budget=budget)
            return
        yield f"to {target}", self._decided(state._replace(budget=budget), after)

    def _decide(self, state: State) -> Iterator[tuple[str, State]]:
        """As `decisions.reconcile` does it."""
        live, minimum = self._live(state), self._rules.min_isr
        after = with_live_brokers(state.image, live, ElectionRules(minimum))
        if after.leader == state.image.leader:
            after = advanced(after, live, minimum, self._led_lately(state))
        if after != state.image:
            yield f"decided {_told(after)}", self._decided(state, after)

    def _decided(self, state: State, after: PartitionImage) -> State:
        epoch = state.image.partition_epoch + 1
        return state._replace(image=replace(after, partition_epoch=epoch))

    # --- brokers ---------------------------------------------------------------------------------

    def _die(self, state: State, broker: int) -> Iterator[tuple[str, State]]:
        if state.budget.crashes:
            budget = state.budget._replace(crashes=state.budget.crashes - 1)
            views = _with(state.views, broker, None)
            yield f"{broker} dies", state._replace(views=views, budget=budget)

    def _leave(self, state: State, broker: int) -> Iterator[tuple[str, State]]:
        if state.budget.stops and broker not in state.leaving:
            budget = state.budget._replace(stops=state.budget.stops - 1)
            leaving = state.leaving | {broker}
            yield f"{broker} is to stop", state._replace(leaving=leaving, budget=budget)

    def _heard(self, state: State, broker: int) -> State:
        """The broker knows what the controller has decided."""
        image, known = state.image, state.views[broker]
        if broker not in image.replicas:
            state = state._replace(logs=_with(state.logs, broker, ()))
        view = View(image, start=len(state.logs[broker]))
        if known is not None and known.image.leader_epoch == image.leader_epoch:
            positions = tuple(
                known.positions[one] if one in image.replicas else UNKNOWN for one in IDS
            )
            view = known._replace(image=image, positions=positions)
        return self._marked(state, broker, view)

    def _marked(self, state: State, broker: int, view: View) -> State:
        """The state with this view, and its mark moved as far as it goes if the broker leads."""
        image, log = view.image, state.logs[broker]
        if image.leader == broker and len(image.isr) >= image.in_sync_min(self._rules.min_isr):
            others = [view.positions[one] for one in image.isr if one != broker]
            mark = max(view.mark, min([len(log), *others]))
            view = view._replace(mark=mark)
            if mark > len(state.promised):
                state = state._replace(promised=log[:mark])
        return state._replace(views=_with(state.views, broker, view))

    def _append(self, state: State, broker: int, view: View) -> Iterator[tuple[str, State]]:
        if state.budget.appends:
            log = (*state.logs[broker], view.image.leader_epoch)
            budget = state.budget._replace(appends=state.budget.appends - 1)
            grown = state._replace(logs=_with(state.logs, broker, log), budget=budget)
            yield f"{broker} appends", self._marked(grown, broker, view)

    def _fetch(self, state: State, broker: int, view: View) -> Iterator[tuple[str, State]]:
        leader = view.image.leader
        theirs = state.views[leader] if leader in IDS else None
        if theirs is None or broker not in view.image.replicas:
            return
        if theirs.image.leader != leader or broker not in theirs.image.replicas:
            return
        if theirs.image.leader_epoch != view.image.leader_epoch:
            return
        own, log = state.logs[broker], state.logs[leader]
        if own != log[: len(own)]:
            common = next(at for at, epoch in enumerate(own) if log[at : at + 1] != (epoch,))
            cut = state._replace(logs=_with(state.logs, broker, own[:common]))
            yield f"{broker} cuts to {common}", cut
            return
        fetched = state._replace(logs=_with(state.logs, broker, log[: len(own) + 1]))
        positions = _with(theirs.positions, broker, len(own))
        noted = theirs._replace(positions=positions)
        yield f"{broker} fetches", self._marked(fetched, leader, noted)

    def _propose(self, state: State, broker: int, view: View) -> Iterator[tuple[str, State]]:
        """Whoever has caught up joins; the controller and the leader know it at once."""
        image = view.image
        for one in image.replicas:
            if one in image.isr or state.views[one] is None:
                continue
            if view.positions[one] < max(view.mark, view.start):
                continue
            try:
                after = after_isr_change(
                    state.image,
                    (*image.isr, one),
                    leader_epoch=image.leader_epoch,
                    partition_epoch=image.partition_epoch,
                    eligible=self._live(state).electable,
                    min_isr=self._rules.min_isr,
                )
            except KafkaError:
                continue
            joined = self._decided(state, after)
            yield f"{one} joins", self._marked(joined, broker, view._replace(image=joined.image))


def _told(image: PartitionImage) -> str:
    return f"{image.replicas} led by {image.leader} in {image.leader_epoch}, in sync {image.isr}"


def _check(state: State) -> str:
    count = len(state.promised)
    for one in (*state.image.isr, *state.image.elr):
        if state.logs[one][:count] != state.promised:
            return f"I12: {one} lacks what was promised"
    for one, view in enumerate(state.views):
        if view is not None and view.image.leader == one and view.mark < count:
            is_current = view.image.leader_epoch == state.image.leader_epoch
            if not is_current and view.image.leader_epoch < max(state.promised):
                return f"I8: {one} answers readers, and knows less than was promised"
    return ""


def explore(rules: MoveRules, replicas: tuple[int, ...], budget: Budget, *, states_max: int) -> int:
    """Visit every state, breadth first; how many there are. Raises Broken."""
    image = new_partition(replicas)
    views = tuple(View(image) for _ in IDS)
    first = State(image, ((), (), ()), views, (), budget)  # type: ignore[arg-type]
    return visit_all(first, Model(rules).steps, _check, states_max=states_max)
