"""Random clients against a classic group: I26 and I27 after every step.

Clients join, sync, heartbeat, commit, leave, lose their ids and fall silent, in any order. The log
refuses some appends, and the coordinator moves. Two clients are static, and one pretends to be one
of these two. If all clients behave from some moment on, the group becomes stable.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.support.classic_desk import GROUP, Answer, Client, Desk, config
from tidemill.coordinators.group.base.group import DeadlineKey, DeadlineKind, ShardContext
from tidemill.coordinators.group.classic.classic_group import ClassicGroup
from tidemill.coordinators.group.re2_matcher import Re2Matcher
from tidemill.coordinators.runtime.deadlines import Deadlines
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Result
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.generated.group_metadata_record import GroupMetadataValue

SESSION_MS = 10_000
REBALANCE_MS = 20_000
DELAY_MS = 1_000
SETTLING_STEPS = 120
"""Seconds; lost ids and members expire within it, each with one round."""

NAMES = ("ana", "ben", "static-a", "static-b")
CLIENTS = st.sampled_from((*NAMES, "pretender"))


class WatchedDesk(Desk):
    """Checks every record against those before it."""

    def __init__(self) -> None:
        super().__init__(config(group_initial_rebalance_delay_ms=DELAY_MS))
        self.plans: dict[int, dict[str, bytes]] = {}
        """By generation: the assignment of each member id."""

    def apply(self, result: Result[Any], client: Client | None = None) -> Answer:
        for record in result.records:
            if not self.append_fails:
                self._check_record(self.decoded(record))
        return super().apply(result, client)

    def _check_record(self, value: GroupMetadataValue) -> None:
        newest = max(self.plans, default=0)
        shares = {member.member_id: member.assignment for member in value.members}
        if value.members and value.generation == newest:
            known = self.plans[newest]
            assert sorted(shares.values()) == sorted(self._newest_shares()), "I26: two plans"
            assert all(known.get(member, share) == share for member, share in shares.items())
            known.update(shares)
        else:
            assert value.generation > newest, "I26: a generation that was"
            self.plans[value.generation] = shares

    def _newest_shares(self) -> list[bytes]:
        return [member.assignment for member in self.decoded(self.log[-1]).members]


class ClassicGroupMachine(RuleBasedStateMachine):
    """Random steps first; at the end all clients behave."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = WatchedDesk()
        self.clients = {name: self._client(name) for name in (*NAMES, "pretender")}
        self.asked: list[tuple[Answer, int, str]] = []
        """Parked SyncGroups with their generation and member id."""
        self.waiting: list[Answer] = []
        self.attempt = 0
        self.phases: dict[str, str] = dict.fromkeys(NAMES, "out")
        """The progress of each client that behaves, and the answer that it waits for."""
        self.answers: dict[str, Answer] = {}

    @initialize(settled=st.booleans())
    def begin(self, settled: bool) -> None:
        if settled:
            self.settle()

    @staticmethod
    def _client(name: str) -> Client:
        instances = {"static-a": "a", "static-b": "b", "pretender": "a"}
        return Client(
            name,
            instance_id=instances.get(name),
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )

    # --- events ----------------------------------------------------------------------------------

    @rule(name=CLIENTS, version=st.sampled_from([3, 8, 9]))
    def join(self, name: str, version: int) -> None:
        self._join(name, version)

    def _join(self, name: str, version: int) -> ErrorCode | None:
        client = self.clients[name]
        if client.instance_id is not None:
            version = max(version, 5)
        return self._code(lambda: self.desk.send_join(client, version=version))

    @rule(name=CLIENTS)
    def sync(self, name: str) -> None:
        self._sync(name)

    def _sync(self, name: str) -> ErrorCode | None:
        client = self.clients[name]
        generation, member_id = client.generation, client.member_id
        plan = self._made_plan(client) if client.leads else {}
        records = len(self.desk.log)
        code = self._code(lambda: self._asked_sync(client, plan, generation, member_id))
        if len(self.desk.log) > records:
            written = self.desk.decoded(self.desk.log[-1])
            assert written.generation == generation
            for member in written.members:
                assert member.assignment == plan.get(member.member_id, b""), "I26: not the leader's"
        return code

    def _made_plan(self, client: Client) -> dict[str, bytes]:
        self.attempt += 1
        return {
            member_id: f"{client.generation}/{self.attempt}/{index}".encode()
            for index, member_id in enumerate(client.listed)
        }

    def _asked_sync(
        self, client: Client, plan: dict[str, bytes], generation: int, member_id: str
    ) -> Answer:
        answer = self.desk.sync(client, plan)
        self.asked.append((answer, generation, member_id))
        return answer

    @rule(name=CLIENTS)
    def heartbeat(self, name: str) -> None:
        self._heartbeat(name)

    def _heartbeat(self, name: str) -> ErrorCode | None:
        return self._code(lambda: self.desk.heartbeat(self.clients[name]))

    @rule(name=CLIENTS)
    def leave(self, name: str) -> None:
        client = self.clients[name]
        self._code(lambda: self.desk.leave(client))

    @rule(name=CLIENTS)
    def commit(self, name: str) -> None:
        client = self.clients[name]
        before = (client.generation, client.member_id)
        try:
            self.desk.commit(client)
        except KafkaError:
            return
        members = {member.member_id for member in self.desk.group.describe().members}
        if client.generation >= 0 or members:
            assert before[0] == self.desk.group.generation, "I26: a commit of another generation"
            assert before[1] in members

    @rule(name=CLIENTS)
    def restart(self, name: str) -> None:
        client = self.clients[name]
        client.member_id, client.generation, client.leads = "", -1, False

    @rule(name=st.sampled_from(NAMES), topic=st.sampled_from("tu"))
    def subscribe(self, name: str, topic: str) -> None:
        self.clients[name].topics = (topic,)

    @rule(ms=st.sampled_from([1, DELAY_MS, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def wait(self, ms: int) -> None:
        self.desk.advance(ms)

    @rule()
    def reload(self) -> None:
        self.desk.reload()

    @rule(fails=st.booleans())
    def log_changes(self, fails: bool) -> None:
        self.desk.append_fails = fails

    @rule(steps=st.integers(1, 12), absent=st.sampled_from((*NAMES, "nobody")))
    def live(self, steps: int, absent: str) -> None:
        """All clients but one behave for a while."""
        for _ in range(steps):
            for name in NAMES:
                if name != absent:
                    self._behave(name)
            self.desk.advance(1_000)

    @rule()
    def settle(self) -> None:
        """From now on all clients behave."""
        self.desk.append_fails = False
        self.phases = dict.fromkeys(NAMES, "out")
        self.answers.clear()
        for _ in range(SETTLING_STEPS):
            for name in NAMES:
                self._behave(name)
            if self._is_settled():
                return
            self.desk.advance(1_000)
        raise AssertionError(f"I27: not stable after {SETTLING_STEPS} s")

    def teardown(self) -> None:
        self.settle()

    # --- a client that behaves -------------------------------------------------------------------

    def _behave(self, name: str) -> None:
        """One step: join until answered, sync until answered, then heartbeat."""
        pending = self.answers.get(name)
        if pending is None:
            self._ask(name)
        elif not pending.waits:
            del self.answers[name]
            self._react(name, pending.code)

    def _ask(self, name: str) -> None:
        phase = self.phases[name]
        if phase == "works":
            code = self._heartbeat(name)
        else:
            code = self._join(name, 9) if phase == "out" else self._sync(name)
        if code is None:
            self.answers[name] = self.waiting[-1]
        else:
            self._react(name, code)

    def _react(self, name: str, code: ErrorCode) -> None:
        after = {"out": "joined", "joined": "works", "works": "works"}
        if code is ErrorCode.NONE:
            self.phases[name] = after[self.phases[name]]
            return
        self.phases[name] = "out"
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.restart(name)

    def _is_settled(self) -> bool:
        group = self.desk.group
        return (
            group.state_name == "Stable"
            and all(phase == "works" for phase in self.phases.values())
            and all(self.clients[name].generation == group.generation for name in NAMES)
        )

    def _code(self, ask: Any) -> ErrorCode | None:
        """The answer to a request; None if it waits."""
        try:
            answer = ask()
        except KafkaError as refusal:
            return refusal.code
        if answer.waits:
            self.waiting.append(answer)
            return None
        return ErrorCode(answer.code)

    # --- invariants ------------------------------------------------------------------------------

    @invariant()
    def every_plan_is_handed_out_as_it_is_in_the_log(self) -> None:
        for answer, generation, member_id in self.asked:
            if not answer.waits and answer.code is ErrorCode.NONE:
                assert answer.response.assignment == self.desk.plans[generation][member_id]
        self.asked = [asked for asked in self.asked if asked[0].waits]

    @invariant()
    def nobody_waits_who_was_forgotten(self) -> None:
        self.waiting = [answer for answer in self.waiting if answer.waits]
        assert len(self.desk.group.parked()) == len(self.waiting)

    @invariant()
    def time_runs_for_everyone(self) -> None:
        deadlines = self.desk.context.deadlines
        state = self.desk.group.state_name
        for member in self.desk.group.describe().members:
            assert DeadlineKey(GROUP, DeadlineKind.SESSION, member.member_id) in deadlines
        joining = state == "PreparingRebalance"
        assert joining == (DeadlineKey(GROUP, DeadlineKind.REBALANCE) in deadlines)
        if state == "CompletingRebalance":
            assert DeadlineKey(GROUP, DeadlineKind.SYNC) in deadlines

    @invariant()
    def log_says_the_same_of_a_group_at_rest(self) -> None:
        group = self.desk.group
        if group.state_name in ("Stable", "Empty"):
            twin = loaded(self.desk.log)
            assert twin.describe() == group.describe()
            assert twin.generation == group.generation


def loaded(log: list[CoordinatorRecord]) -> ClassicGroup:
    group = ClassicGroup(GROUP, ShardContext(config(), Deadlines(), MetadataImage(), Re2Matcher()))
    for record in log:
        group.replay_metadata(Desk.decoded(record))
    return group


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        ClassicGroupMachine, settings=settings(max_examples=examples, stateful_step_count=steps)
    )


def test_I26_I27_plans_are_the_leaders_and_groups_become_stable():
    _run(examples=6, steps=20)


@pytest.mark.slow
def test_I26_I27_plans_are_the_leaders_and_groups_become_stable_at_length():
    _run(examples=200, steps=40)
