"""Consumers of both protocols come and go: no partition has two readers, and finally each has one.

The group changes its kind whenever the members demand it. The coordinator may lose everything
except its log at any time, also between the records of a change and what follows from them.
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

from tests.support.mixed_group import (
    REBALANCE_MS,
    SESSION_MS,
    ClassicConsumer,
    MixedDesk,
    NewConsumer,
)
from tidemill.coordinators.group.migration import classic_requests

CLIENTS_MAX = 5
KINDS = ["eager", "cooperative", "new"]
ROUNDS_MAX = 30
"""Steps of each client from the last disturbance to a group in which everything is read."""
STEPS_TO_ITS_FIRST_ASSIGNMENT = 6
clients = st.integers(0, CLIENTS_MAX - 1)


class ConsumersOfBothProtocols(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 6), kinds=st.lists(st.sampled_from(KINDS), max_size=3))
    def open(self, partitions: int, kinds: list[str]) -> None:
        self.desk = MixedDesk(partitions)
        self.clients: list[ClassicConsumer | NewConsumer] = []
        self.names_made = 0
        for kind in kinds:
            self.start(kind, None)

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(kind=st.sampled_from(KINDS), instance=st.sampled_from([None, None, "i1", "i2"]))
    def start(self, kind: str, instance: str | None) -> None:
        if any(one.instance_id == instance for one in self.clients):
            instance = None
        self.names_made += 1
        name = f"c{self.names_made}"
        if kind == "new":
            self.clients.append(NewConsumer(self.desk, name, instance))
        else:
            cooperates = kind == "cooperative"
            self.clients.append(
                ClassicConsumer(self.desk, name, instance, is_cooperative=cooperates)
            )

    @precondition(lambda self: any(one.instance_id for one in self.clients))
    @rule(index=clients, kind=st.sampled_from(KINDS))
    def restart_static(self, index: int, kind: str) -> None:
        """A static member restarts, perhaps with the other protocol."""
        static = [one for one in self.clients if one.instance_id]
        client = static[index % len(static)]
        self.clients.remove(client)
        if isinstance(client, NewConsumer):
            client.leave()
        self.start(kind, client.instance_id)

    def pick(self, index: int) -> ClassicConsumer | NewConsumer:
        return self.clients[index % len(self.clients)]

    @precondition(lambda self: self.clients)
    @rule(index=clients)
    def leave(self, index: int) -> None:
        client = self.pick(index)
        self.clients.remove(client)
        client.leave()

    @precondition(lambda self: self.clients)
    @rule(index=clients)
    def die(self, index: int) -> None:
        self.clients.remove(self.pick(index))

    @precondition(lambda self: self.clients)
    @rule(steps=st.lists(clients, min_size=4, max_size=20))
    def go_on(self, steps: list[int]) -> None:
        for index in steps:
            self.pick(index).step()
            self.i26_no_partition_has_two_readers()

    @rule(ms=st.sampled_from([500, SESSION_MS // 2, SESSION_MS, REBALANCE_MS]))
    def pass_time(self, ms: int) -> None:
        self.desk.pass_time(ms)

    @rule()
    def reload(self) -> None:
        self.desk.reload()

    @invariant()
    def i26_no_partition_has_two_readers(self) -> None:
        """Among current members only: the others have been told, or will be, to stop."""
        if not hasattr(self, "desk"):
            return
        members = self.desk.member_ids()
        live = [one for one in self.clients if one.member_id in members]
        for one, other in combinations(live, 2):
            assert one.reading.isdisjoint(other.reading), (one.name, other.name)

    def teardown(self) -> None:
        """I27: once events stop, every partition soon has a reader, and the group its kind."""
        if not hasattr(self, "desk"):
            return
        for _ in range(ROUNDS_MAX):
            for client in self.clients:
                client.step()
                self.i26_no_partition_has_two_readers()
            self.desk.pass_time(SESSION_MS // 4)
        for _ in range(ROUNDS_MAX):
            for client in self.clients:
                client.step()
        if not self.clients:
            assert self.desk.member_ids() == set()
            return
        read = sorted(number for one in self.clients for number in one.reading)
        assert read == list(range(self.desk.partitions))
        assert self.desk.state == "Stable"
        has_new = any(isinstance(one, NewConsumer) for one in self.clients)
        assert self.desk.kind == ("consumer" if has_new else "classic")


class BeginsCooperatively(ConsumersOfBothProtocols):
    @initialize(partitions=st.integers(2, 6))
    def open(self, partitions: int) -> None:
        """A member that keeps what it may, and another one about to join."""
        super().open(partitions, ["cooperative"])
        for _ in range(STEPS_TO_ITS_FIRST_ASSIGNMENT):
            self.pick(0).step()
        self.start("new", None)


def check(
    examples: int,
    steps: int,
    model: type[ConsumersOfBothProtocols] = ConsumersOfBothProtocols,
    **how,
) -> None:
    run_state_machine_as_test(
        model,
        settings=settings(max_examples=examples, stateful_step_count=steps, **how),
    )


def test_I26_I27_consumers_of_both_protocols_share_a_group():
    check(examples=6, steps=15)


@pytest.mark.slow
def test_I26_I27_hold_over_long_histories_of_both_protocols():
    check(examples=150, steps=50)


def test_the_model_finds_a_join_that_does_not_say_what_is_still_owned(monkeypatch):
    """A planted bug: a cooperative member's join frees partitions that it still reads."""
    monkeypatch.setattr(classic_requests, "partitions_by_id", lambda topics, image: {})
    with pytest.raises(AssertionError, match="isdisjoint"):
        check(examples=100, steps=25, model=BeginsCooperatively, phases=[Phase.generate])
