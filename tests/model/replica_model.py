"""All interleavings of brokers that replicate, die, return and are elected, with the real code.

Each broker is a real `ReplicaManager` with a real `Partition`; the controller decides with the real
functions of `decisions.py` and `log_ends.py`. Leaders append, followers fetch a record at a time,
cut and flush. Processes die, with or without their page cache, and return, some with a new disk.
Everybody hears late of what the controller has written. A fetch or a proposal may stay on its way
until its sender has died and come back.

Checked in every state:

- I9   in one leader epoch the high watermark never goes back
- I12  the leader has all that was readable and that somebody it counts on still has
- I14  so has whoever may be elected without doubt (isr and elr), and has flushed what was
       acknowledged
- I13  no follower is asked to drop what was committed
- I16  a follower that is told to cut its log does not stay as it was
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

from tests.model.exploration import Broken, visit_all
from tests.model.frozen_broker import (
    NAME,
    Broker,
    Copy,
    Log,
    Meta,
    ModelLog,
    Registration,
    delta_to,
    freeze,
    image_of,
    thaw,
)
from tests.model.replica_state import (
    AT_ONCE,
    NEVER,
    SOMETIME,
    Budget,
    Fetch,
    Proposal,
    State,
    Told,
    World,
    broken_promise,
    still_counted_on,
)
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER
from tidemill.core.loop.steps import finished
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.rules import decisions
from tidemill.metadata.rules.election import new_partition
from tidemill.metadata.rules.log_ends import LogEnd, LogEndQuestion, ToldEnds
from tidemill.replication import log_ends
from tidemill.replication.partition import Partition
from tidemill.replication.pulling import fetch_round, leader_answers
from tidemill.replication.pulling.leader_answers import LeaderAnswers
from tidemill.server.handlers.data import replica_fetch
from tidemill.wire.generated.fetch import FetchPartition, PartitionData

__all__ = ["AT_ONCE", "NEVER", "SOMETIME", "Broken", "Budget", "World", "explore"]


class Fetched(NamedTuple):
    """What became of a fetch."""

    name: str
    leader: Broker
    follower: Broker
    fault: str = ""


class Model:
    """The steps that are possible in a state."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._min_isr = world.min_isr
        self._heard = cache(self._after_hearing)
        self._decision = cache(self._decided_by)
        self._exchange = cache(self._fetched_from)
        self._ends = cache(self._end_of)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for name, after in self._all_steps(state):
            yield name, self._all_hear(after) if self._world.hears_at_once else after

    def _all_hear(self, state: State) -> State:
        for one, broker in enumerate(state.brokers):
            if broker.view is not None and broker.view != state.meta:
                state = self.hear(state, one)
        return state

    def _all_steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._decide(state)
        for one, broker in enumerate(state.brokers):
            if broker.view is None:
                yield from self._come_back(state, one, broker)
                continue
            if broker.view != state.meta:
                yield f"{one} hears", self.hear(state, one)
            yield from self._tell_end(state, one, broker)
            if broker.copy.is_leader:
                yield from self._append(state, one)
                yield from self._propose(state, one)
            else:
                yield from self._fetch(state, one, broker)
            if self._world.flushes == SOMETIME and broker.copy.flushed < len(broker.copy.log):
                yield f"{one} flushes", self._flush(state, one)
            yield from self._die(state, one, broker)
        for message in state.late:
            rest = tuple(other for other in state.late if other is not message)
            yield f"{message} arrives", self._arrive(state._replace(late=rest), message)

    # --- changes of a state ----------------------------------------------------------------------

    def _with(self, state: State, one: int, broker: Broker) -> State:
        """The state with this broker, and with what it has promised if it leads."""
        brokers = (*state.brokers[:one], broker, *state.brokers[one + 1 :])
        state, copy = state._replace(brokers=brokers), broker.copy
        if not copy.is_leader:
            return state
        if state.mark[0] == copy.leader_epoch and copy.mark < state.mark[1]:
            return state._replace(fault=f"I9: {one} leads, and the mark has fallen in its epoch")
        state = state._replace(mark=max(state.mark, (copy.leader_epoch, copy.mark)))
        for kind, count in (("readable", copy.mark), ("acknowledged", copy.durable)):
            known: Log = getattr(state, kind)
            if copy.log[: len(known)][:count] != known[:count]:
                return state._replace(fault=f"{one} leads, and {kind} records are others")
            if count > len(known):
                state = state._replace(**{kind: copy.log[:count]})
        return state

    def _spend(self, state: State, kind: str) -> State:
        left = getattr(state.budget, kind) - 1
        return state._replace(budget=state.budget._replace(**{kind: left}))

    # --- the controller --------------------------------------------------------------------------

    def _decide(self, state: State) -> Iterator[tuple[str, State]]:
        """Let in who has registered, and bring the partition in line, in one write."""
        meta = state.meta
        after = self._decision(meta, state.told)
        members = tuple(
            known if now is None else now._replace(unclean=False)
            for known, now in zip(meta.members, meta.brokers, strict=True)
        )
        if after != meta.partition or members != meta.members:
            yield f"decided {_told(after)}", self._decided(state, after, members)

    def _decided_by(self, meta: Meta, told: Told) -> PartitionImage:
        image, surveyed = image_of(meta, self._min_isr), ToldEnds()
        for question, end in told:
            surveyed.ask(question, 0.0)
            surveyed.answer(question, end)
        changes = finished(
            decisions.reconcile(
                image,
                returned=decisions.returns(image),
                told=lambda *place: surveyed.of(*place, image.brokers, 0.0),
            )
        )
        return changes[0].after if changes else meta.partition

    def _decided(
        self, state: State, after: PartitionImage, members: tuple[Registration, ...] | None = None
    ) -> State:
        if after != state.meta.partition:
            after = replace(after, partition_epoch=state.meta.partition.partition_epoch + 1)
        known = state.meta.members if members is None else members
        told = tuple(one for one in state.told if one[0].leader_epoch == after.leader_epoch)
        meta = Meta(after, state.meta.brokers, known)
        return still_counted_on(state._replace(meta=meta, told=told))

    def _tell_end(self, state: State, one: int, broker: Broker) -> Iterator[tuple[str, State]]:
        found = self._ends(one, broker, state.meta)
        if found is None or found in state.told:
            return
        others = tuple(told for told in state.told if told[0].broker_id != one)
        told = tuple(sorted((*others, found)))
        yield f"{one} tells its end {found[1].end_offset}", state._replace(told=told)

    def _end_of(self, one: int, broker: Broker, meta: Meta) -> tuple[LogEndQuestion, LogEnd] | None:
        """What it says when the controller asks it; None: it is not asked, or says nothing."""
        image = image_of(meta, self._min_isr)
        live, topic = decisions.live_brokers(image), image.topics[NAME.topic]
        for asked in decisions.log_end_questions(image, topic, 0, live.electable):
            if asked.broker_id != one or asked.broker_epoch != broker.life or broker.view is None:
                continue
            manager, _ = thaw(one, broker, self._min_isr)
            try:
                view = image_of(broker.view, self._min_isr)
                return asked, log_ends._find_end(view, manager, asked)
            except KafkaError:
                return None
        return None

    # --- lives -----------------------------------------------------------------------------------

    def _die(self, state: State, one: int, broker: Broker) -> Iterator[tuple[str, State]]:
        copy = broker.copy
        # An unclean end that the controller has not heard of is still to be told.
        ends_clean = broker.is_let_in or broker.ended_clean
        for kind, left in (
            ("crashes", Copy(copy.log, copy.flushed)),
            ("power_losses", Copy(copy.log[: copy.flushed], copy.flushed)),
            ("clean_stops", Copy(copy.log, len(copy.log))),
        ):
            if not getattr(state.budget, kind):
                continue
            down = broker._replace(
                view=None,
                copy=left,
                ended_clean=kind == "clean_stops" and ends_clean,
                lost_in=broker.life if kind == "power_losses" else broker.lost_in,
            )
            dead = self._with(state, one, down)
            yield f"{one} dies: {kind}", still_counted_on(self._spend(dead, kind))

    def _come_back(self, state: State, one: int, broker: Broker) -> Iterator[tuple[str, State]]:
        if state.meta.brokers[one] is not None:
            brokers = _at(state.meta.brokers, one, None)
            yield f"{one}'s session ends", state._replace(meta=state.meta._replace(brokers=brokers))
        unclean = not broker.ended_clean
        yield f"{one} returns", self._started(state, one, broker, unclean=unclean)
        if state.budget.new_disks:
            state = self._spend(state, "new_disks")
            empty = broker._replace(disk=broker.disk + 1, copy=Copy(), lost_in=broker.life)
            started = self._started(state, one, empty, unclean=False)
            yield f"{one} returns with a new disk", still_counted_on(started)

    def _started(self, state: State, one: int, broker: Broker, *, unclean: bool) -> State:
        """It recovers its log, registers, and reads the metadata."""
        life = broker.life + 1
        registered = Registration(life, broker.disk, unclean)
        meta = state.meta._replace(brokers=_at(state.meta.brokers, one, registered))
        copy = broker.copy
        epochs: list[tuple[int, int]] = []
        for offset, epoch in enumerate(copy.log):
            if not epochs or epochs[-1][0] != epoch:
                epochs.append((epoch, offset))
        recovered = Copy(copy.log, copy.flushed, tuple(epochs))
        fresh = broker._replace(life=life, is_let_in=False, copy=recovered)
        state = self._with(state._replace(meta=meta), one, fresh)
        return self.hear(state, one)

    def hear(self, state: State, one: int) -> State:
        return self._with(state, one, self._heard(one, state.brokers[one], state.meta))

    def _after_hearing(self, one: int, broker: Broker, meta: Meta) -> Broker:
        manager, partition = thaw(one, broker, self._min_isr)
        finished(manager.apply(delta_to(broker.view, meta, self._min_isr)))
        return freeze(broker, manager, partition)._replace(view=meta)

    # --- leaders ---------------------------------------------------------------------------------

    def _append(self, state: State, one: int) -> Iterator[tuple[str, State]]:
        if state.budget.appends:
            manager, partition = thaw(one, state.brokers[one], self._min_isr)
            self._grow(partition, partition.leader_epoch)
            partition.maybe_advance_marks()
            grown = self._with(state, one, freeze(state.brokers[one], manager, partition))
            yield f"{one} appends", self._spend(grown, "appends")

    def with_records(self, state: State, count: int) -> State:
        """The state in which so many records are everywhere, and the leader knows it."""
        budget = state.budget
        state = state._replace(budget=Budget(appends=count))
        for _ in range(count):
            ((_, state),) = self._append(state, 0)
            for one in 2 * tuple(range(1, self._world.replicas)):
                ((_, state),) = self._fetch(state, one, state.brokers[one])
        return state._replace(budget=budget)

    def _grow(self, partition: Partition, *records: int) -> None:
        log = partition.log
        assert isinstance(log, ModelLog)
        log.append(*records)
        if self._world.flushes == AT_ONCE:
            log.flushed_offset = log.log_end_offset

    def _flush(self, state: State, one: int) -> State:
        """A follower's leader hears of it with the next fetch."""
        manager, partition = thaw(one, state.brokers[one], self._min_isr)
        log = partition.log
        assert isinstance(log, ModelLog)
        log.flushed_offset = log.log_end_offset
        partition.maybe_advance_marks()
        return self._with(state, one, freeze(state.brokers[one], manager, partition))

    def _propose(self, state: State, one: int) -> Iterator[tuple[str, State]]:
        broker = state.brokers[one]
        manager, partition = thaw(one, broker, self._min_isr)
        proposal = partition.try_propose_isr(now=0.0)
        if proposal is None:
            return
        name = f"{one} proposes {[member for member, _ in proposal.isr]}"
        message = Proposal(one, broker.life, proposal)
        made, answer = self._proposed(state, message)
        if isinstance(answer, ErrorCode):
            partition.isr_answered(proposal, answer, None)
        else:
            partition.isr_answered(proposal, ErrorCode.NONE, answer)
        yield name, self._with(made, one, freeze(broker, manager, partition))
        if state.budget.late:
            manager, partition = thaw(one, broker, self._min_isr)
            partition.try_propose_isr(now=0.0)
            partition.isr_unanswered(proposal)
            waits = self._with(state, one, freeze(broker, manager, partition))
            sent = waits._replace(late=(*waits.late, message))
            yield f"{name}, late", self._spend(sent, "late")

    def _proposed(
        self, state: State, message: Proposal
    ) -> tuple[State, PartitionImage | ErrorCode]:
        """As `PartitionChanges.alter_isr` does it."""
        image = image_of(state.meta, self._min_isr)
        sender = image.brokers.get(message.sender)
        is_live = message.sender in decisions.live_brokers(image).brokers
        if sender is None or not is_live or sender.epoch != message.life:
            return state, ErrorCode.STALE_BROKER_EPOCH
        try:
            after = decisions.changed_in_sync_set(image, sender, message.proposed).after
        except KafkaError as refusal:
            return state, refusal.code
        epoch = state.meta.partition.partition_epoch + 1
        done = replace(after, partition_epoch=epoch)
        return state._replace(meta=state.meta._replace(partition=done)), done

    # --- followers -------------------------------------------------------------------------------

    def _fetch(self, state: State, one: int, broker: Broker) -> Iterator[tuple[str, State]]:
        image = broker.copy.image
        leader = NO_LEADER if image is None else image.leader
        if leader in (NO_LEADER, one) or state.brokers[leader].view is None:
            return
        if state.budget.late:
            _, partition = thaw(one, broker, self._min_isr)
            sent = Fetch(one, broker.life, leader, *_position(partition))
            late = self._spend(state._replace(late=(*state.late, sent)), "late")
            yield f"{one} sends a fetch", late
        done = self._exchange(one, broker, leader, state.brokers[leader])
        if done is not None:
            served = self._with(state, leader, done.leader)
            fetched = self._with(served, one, done.follower)
            yield done.name, fetched._replace(fault=done.fault or fetched.fault)

    def _fetched_from(
        self, one: int, broker: Broker, leader: int, leading: Broker
    ) -> Fetched | None:
        """A fetch and its answer; None: it was refused."""
        manager, partition = thaw(one, broker, self._min_isr)
        served, data, records = self._served(leader, leading, one, broker.life, partition)
        if data.error_code not in (0, ErrorCode.OFFSET_OUT_OF_RANGE):
            return None
        asked = leader_answers._try_plan_cut(partition, data)
        if asked is not None:
            fault = _cut(partition, asked)
            cut = freeze(broker, manager, partition)
            if cut == broker and not fault:
                fault = f"I16: {one} is told to cut its log for ever"
            return Fetched(f"{one} cuts to {asked.offset}", served, cut, fault)
        self._grow(partition, *records)
        partition.as_follower._hear_mark(min(data.high_watermark, partition.log.log_end_offset))
        return Fetched(f"{one} fetches", served, freeze(broker, manager, partition))

    def _served(
        self, leader: int, leading: Broker, sender: int, life: int, of: Partition | Fetch
    ) -> tuple[Broker, PartitionData, Log]:
        """What the leader takes in, and answers; as `_ReplicaFetch` does it."""
        epoch, offset, flushed, last_epoch = _position(of) if isinstance(of, Partition) else of[3:]
        wanted = FetchPartition(
            current_leader_epoch=epoch,
            fetch_offset=offset,
            flushed_offset=flushed,
            last_fetched_epoch=last_epoch,
        )
        manager, partition = thaw(leader, leading, self._min_isr)
        data = PartitionData(log_start_offset=0)
        try:
            manager.broker_epochs.check(sender, life)
            partition.check_serves_followers()
            partition.check_epoch(epoch)
            if last_epoch >= 0 and replica_fetch._diverges(partition, wanted, data):
                return leading, data, ()
            partition.follower_fetched(sender, fetch_offset=offset, flushed_offset=flushed, now=0.0)
        except KafkaError as error:
            data.error_code = error.code
            return leading, data, ()
        data.high_watermark = partition.high_watermark
        served = freeze(leading, manager, partition)
        return served, data, leading.copy.log[offset : offset + 1]

    def _arrive(self, state: State, message: Fetch | Proposal) -> State:
        """Nobody waits for an answer."""
        if isinstance(message, Proposal):
            return self._proposed(state, message)[0]
        leader = message.leader
        if state.brokers[leader].view is None:
            return state
        served, _, _ = self._served(
            leader, state.brokers[leader], message.sender, message.life, message
        )
        return self._with(state, leader, served)


def _position(partition: Partition) -> tuple[int, int, int, int]:
    """What a follower says in its fetch."""
    wanted = fetch_round._wanted(partition, 1)
    return (
        wanted.current_leader_epoch,
        wanted.fetch_offset,
        wanted.flushed_offset,
        wanted.last_fetched_epoch,
    )


def _cut(partition: Partition, asked: leader_answers._AskedCut) -> str:
    """As `LeaderAnswers` does it, at once; what is wrong with it."""
    judge = SimpleNamespace(_unclean_epoch=lambda cut: cut.image.unclean_epoch)
    if not LeaderAnswers._allows_cut(judge, partition, asked):  # type: ignore[arg-type]
        return f"I13: a log with committed records is to be cut to {asked.offset}"
    cut = asked.plan()
    if cut is not None:
        partition.as_follower.begin_cut(cut)
    return ""


def _at(
    values: tuple[Registration | None, ...], index: int, value: Registration | None
) -> tuple[Registration | None, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _told(image: PartitionImage) -> str:
    sets = f"isr {image.isr}, elr {image.elr}, suspects {image.suspects}"
    return f"led by {image.leader} in {image.leader_epoch}, {sets}"


def explore(world: World, budget: Budget, *, states_max: int) -> int:
    """Visit every state, breadth first; how many there are. Raises Broken."""
    ids = tuple(range(world.replicas))
    partition = replace(new_partition(ids), isr=ids if world.isr is None else world.isr)
    registered = (Registration(),) * world.replicas
    model = Model(world)
    brokers = tuple(Broker(None) for _ in ids)
    state = State(Meta(partition, registered, registered), brokers, (), (), (), (), (0, 0), budget)
    for one in ids:
        state = model.hear(state, one)
    if world.records:
        state = model.with_records(state, world.records)
    return visit_all(state, model.steps, broken_promise, states_max=states_max)
