"""Random events, good and bad clients: a partition never has two readers, and finally has one.

After every step the model checks the clients' view: the assignments they were told, the partitions
they read, and what they acknowledged. Clients may lose answers, give partitions up slowly, die,
restart, or never comply. Appends fail, and the coordinator loses everything except its log.
"""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.consumer_desk import (
    INTERVAL_MS,
    REBALANCE_MS,
    SESSION_MS,
    Client,
    ConsumerDesk,
)
from tidemill.coordinators.group import re2_matcher
from tidemill.coordinators.group.base.group import DeadlineKey
from tidemill.core.errors import ErrorCode

TOPICS = ["a", "b", "c"]
CLIENTS_MAX = 5
ROUNDS_MAX = 6
"""Heartbeats of each client from the last disturbance to a stable group: a plan, an answer, an
acknowledgement, a release, and one more each for a join and a lost answer."""

DOINGS = ["beat", "beat", "beat, complies", "comply", "comply", "beat, lost", "beat, fails"]
clients = st.integers(0, CLIENTS_MAX - 1)
subscriptions = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3, unique=True).map(sorted)


class HastyDesk(ConsumerDesk):
    """A planted bug: decides on several deadlines before the records of the first are replayed."""

    def expire(self, keys: list[DeadlineKey]) -> None:
        for result in [self.group.deadlines_passed([key], self.now) for key in keys]:
            self.apply(result)


class ConsumersOfAGroup(RuleBasedStateMachine):
    desk_class = ConsumerDesk

    @initialize(
        counts=st.lists(st.integers(0, 5), min_size=3, max_size=3),
        wanted=st.lists(subscriptions, min_size=1, max_size=3),
    )
    def open(self, counts: list[int], wanted: list[list[str]]) -> None:
        sizes = {name: count for name, count in zip(TOPICS, counts, strict=True) if count}
        self.desk = self.desk_class(sizes)
        self.clients: list[Client] = []
        self.names_made = 0
        self.epoch_seen = 0
        self.members_seen_ms = 0
        for topics in wanted:
            self.start(topics, None, by_pattern=False)

    def pick(self, index: int) -> Client:
        return self.clients[index % len(self.clients)]

    def new_name(self) -> str:
        self.names_made += 1
        return f"m{self.names_made}"

    # --- clients start and stop ------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(
        topics=subscriptions,
        instance=st.sampled_from([None, None, "i1", "i2"]),
        by_pattern=st.booleans(),
    )
    def start(self, topics: list[str], instance: str | None, by_pattern: bool) -> None:
        if instance is not None and any(one.instance_id == instance for one in self.clients):
            instance = None
        self.clients.append(Client(self.desk, self.new_name(), topics, instance, by_pattern))

    @precondition(lambda self: self.clients)
    @rule(index=clients)
    def leave(self, index: int) -> None:
        client = self.pick(index)
        self.clients.remove(client)
        if client.member_id in self.desk.member_ids():
            client.leave()

    @precondition(lambda self: self.clients)
    @rule(index=clients)
    def restart_static(self, index: int) -> None:
        """A static member leaves temporarily; its successor has another member id."""
        client = self.pick(index)
        if client.instance_id is None or client.member_id not in self.desk.member_ids():
            return
        client.leave(-2)
        client.member_id = self.new_name()

    @precondition(lambda self: self.clients)
    @rule(index=clients)
    def die(self, index: int) -> None:
        """It stops without leaving; its partitions stay its own until its session ends."""
        self.clients.remove(self.pick(index))

    @rule()
    def die_together(self) -> None:
        """The broker restarts and no client finds it again: all sessions end at one moment."""
        self.clients.clear()
        self.desk.load()
        self.desk.pass_ms(SESSION_MS)
        assert self.desk.group.is_empty

    # --- clients send heartbeats -----------------------------------------------------------------

    @precondition(lambda self: self.clients)
    @rule(doings=st.lists(st.tuples(clients, st.sampled_from(DOINGS)), min_size=4, max_size=16))
    def go_on(self, doings: list[tuple[int, str]]) -> None:
        """Most of the time clients just continue, each at its own pace."""
        for index, doing in doings:
            self.act(self.pick(index), doing)
            self.i26_no_partition_has_two_readers()

    def act(self, client: Client, doing: str) -> None:
        if doing == "comply":
            client.comply()
        else:
            client.beat(
                is_lost=doing == "beat, lost",
                fails=doing == "beat, fails",
                complies=doing == "beat, complies",
            )

    @precondition(lambda self: self.clients)
    @rule(index=clients)
    def start_over(self, index: int) -> None:
        """A client gives everything up without being told and joins again with its id."""
        client = self.pick(index)
        client.epoch = 0
        client.reading, client.told = set(), set()

    @precondition(lambda self: self.clients)
    @rule(index=clients, topics=subscriptions, by_pattern=st.booleans())
    def subscribe(self, index: int, topics: list[str], by_pattern: bool) -> None:
        self.pick(index).subscribe(topics, by_pattern=by_pattern)

    @precondition(lambda self: self.clients)
    @rule(index=clients, epoch=st.integers(1, 30))
    def come_with_a_foreign_epoch(self, index: int, epoch: int) -> None:
        client = self.pick(index)
        if client.epoch and epoch != client.epoch:
            client.epoch = epoch
            client.beat()

    # --- the broker and its topics ---------------------------------------------------------------

    @rule(ms=st.sampled_from([500, INTERVAL_MS, SESSION_MS, REBALANCE_MS]))
    def pass_time(self, ms: int) -> None:
        self.desk.pass_ms(ms)

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def grow(self, name: str, more: int) -> None:
        topic = self.desk.image.topic(name)
        self.desk.put_topic(name, (0 if topic is None else len(topic.partitions)) + more)

    @rule(name=st.sampled_from(TOPICS))
    def delete(self, name: str) -> None:
        if self.desk.image.topic(name) is not None:
            self.desk.delete_topic(name)

    @rule(compacts=st.booleans())
    def reload(self, compacts: bool) -> None:
        before = self.desk.describe()
        if compacts:
            self.desk.compact()
        self.desk.load()
        after = self.desk.describe()
        before.members.sort(key=lambda one: one.member_id)
        after.members.sort(key=lambda one: one.member_id)
        assert after == before

    # --- invariants ------------------------------------------------------------------------------

    @invariant()
    def i26_no_partition_has_two_readers(self) -> None:
        """Among current members only: a fenced client has been told to stop."""
        if not hasattr(self, "desk"):
            return
        members = self.desk.member_ids()
        live = [one for one in self.clients if one.member_id in members]
        for one, other in combinations(live, 2):
            assert one.reading.isdisjoint(other.reading), (one.member_id, other.member_id)
            assert one.told.isdisjoint(other.reading), (one.member_id, other.member_id)

    @invariant()
    def i26_a_partition_is_committed_by_its_reader_only(self) -> None:
        """With any epoch that the reader may still have; with an older one by no other member."""
        if not hasattr(self, "desk"):
            return
        epochs = {one.member_id: one.member_epoch for one in self.desk.describe().members}
        live = [one for one in self.clients if one.epoch > 0 and one.member_id in epochs]
        for client in live:
            for partition in client.reading:
                code = self.desk.commit_refusal(client.member_id, client.epoch, partition)
                assert code is ErrorCode.NONE, (client.member_id, client.epoch)
                for other in live:
                    older = epochs[other.member_id] - 1
                    if other is not client and older > 0:
                        code = self.desk.commit_refusal(other.member_id, older, partition)
                        assert code is ErrorCode.STALE_MEMBER_EPOCH, other.member_id

    @invariant()
    def epochs_only_rise(self) -> None:
        if hasattr(self, "desk"):
            epoch = self.desk.describe().group_epoch
            assert epoch >= self.epoch_seen
            self.epoch_seen = epoch

    @invariant()
    def an_empty_group_knows_since_when(self) -> None:
        """Its offsets expire counting from then."""
        if not hasattr(self, "desk"):
            return
        if not self.desk.group.is_empty:
            self.members_seen_ms = self.desk.now.wall_ms
        elif self.members_seen_ms:
            assert self.desk.group.empty_since_ms >= self.members_seen_ms

    def teardown(self) -> None:
        """I27: once events stop, every partition soon has a reader."""
        if not hasattr(self, "desk"):
            return
        for _ in range(SESSION_MS // INTERVAL_MS + 1):
            self.all_clients_beat()
            self.desk.pass_ms(INTERVAL_MS)
        for _ in range(ROUNDS_MAX):
            self.all_clients_beat()
        if not self.clients:
            assert self.desk.group.state_name == "Empty"
            return
        assert self.desk.group.state_name == "Stable"
        read = [one for client in self.clients for one in client.reading]
        wanted = {name for client in self.clients for name in client.topics}
        there = [self.desk.image.topics[name] for name in wanted if name in self.desk.image.topics]
        assert sorted(read) == sorted(
            (topic.topic_id, number) for topic in there for number in range(len(topic.partitions))
        )
        for client in self.clients:
            assert self.desk.commit_refusal(client.member_id, client.epoch) is ErrorCode.NONE

    def all_clients_beat(self) -> None:
        for client in self.clients:
            client.beat()
            client.comply()
        self.i26_no_partition_has_two_readers()


class HastyGroup(ConsumersOfAGroup):
    desk_class = HastyDesk


def check(
    examples: int, steps: int, model: type[ConsumersOfAGroup] = ConsumersOfAGroup, **how
) -> None:
    run_state_machine_as_test(
        model, settings=settings(max_examples=examples, stateful_step_count=steps, **how)
    )


def test_I26_I27_clients_never_share_a_partition_and_none_is_left():
    check(examples=12, steps=25)


def test_I26_I27_hold_while_expressions_are_evaluated_name_by_name(monkeypatch):
    monkeypatch.setattr(re2_matcher, "SLICE_COST", 1)
    check(examples=12, steps=25)


@pytest.mark.slow
def test_I26_I27_hold_over_long_histories():
    check(examples=150, steps=60)


def test_the_model_finds_decisions_that_do_not_see_each_other():
    with pytest.raises(AssertionError, match="empty_since_ms"):
        check(examples=100, steps=25, model=HastyGroup, phases=[Phase.generate])
