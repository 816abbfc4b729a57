"""Random producers of one transactional id: I19, I20 and I22 hold, whatever happens when.

Instances of both generations begin, write, end, go on after errors and come back from the dead with
what they knew. Markers are written one by one, some of them twice, and the coordinator moves at any
moment. At the end all markers are written: then every transaction is there whole or not at all, and
as its producer was told.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.support.transaction_desk import ID, TransactionDesk, at
from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.coordinators.transaction.decisions import EPOCH_PER_TRANSACTION
from tidemill.coordinators.transaction.shard import MarkersWanted
from tidemill.coordinators.transaction.states import TransactionStatus
from tidemill.core.errors import ErrorCode, KafkaError

NAMES = ("ana", "ben", "cem")
SECOND_GENERATION = ("ben",)
PARTITIONS = ("t-0", "t-1", "u-0")
TIMEOUT_MS = 10_000
NOBODY = ProducerName(-1, -1)

EXPECTED = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
)

CLIENTS = st.sampled_from(NAMES)
PLACES = st.sampled_from(PARTITIONS)


class Instance:
    """A producer's process: who it thinks it is, and the transaction that it thinks is open."""

    def __init__(self, name: str) -> None:
        self.version = EPOCH_PER_TRANSACTION if name in SECOND_GENERATION else 0
        self.name = NOBODY
        self.values: list[str] = []


class Transactions(RuleBasedStateMachine):
    """One shard, its partitions, and the instances that use them."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = TransactionDesk()
        self.instances = {name: Instance(name) for name in NAMES}
        self.count = 0
        self.newest = NOBODY
        """The last producer that InitProducerId has given."""
        self.told: dict[str, bool] = {}
        """What the producer of each value was told: committed or aborted."""
        self.together: list[list[str]] = []
        """The values of each transaction that its producer has ended, or tried to."""
        self.written: dict[int, set[str]] = {}
        """The markers of a decision that are written, by the decision's identity."""

    # --- producers -------------------------------------------------------------------------------

    def _attempt(self, act) -> bool:
        try:
            act()
        except KafkaError as refusal:
            code = refusal.code
        else:
            return True
        assert code in EXPECTED
        return False

    @rule(client=CLIENTS)
    def begin(self, client):
        self._init(self.instances[client], None)

    @rule(client=CLIENTS)
    def go_on(self, client):
        instance = self.instances[client]
        if instance.name != NOBODY:
            self._init(instance, instance.name)

    def _init(self, instance, resumed):
        def act():
            instance.name = self.desk.init(timeout_ms=TIMEOUT_MS, resumed=resumed)
            self.newest = instance.name
            self._forget(instance)

        self._attempt(act)

    @rule(client=CLIENTS, place=PLACES)
    def write(self, client, place):
        instance = self.instances[client]
        value = f"{client}-{self.count}"

        def act():
            if not instance.version:
                self.desk.add(instance.name, place)
            self.desk.produce(instance.name, place, value, version=instance.version)
            instance.values.append(value)

        self.count += 1
        if self._attempt(act):
            # I19: once a newer epoch was given, nothing of an older one is appended.
            assert instance.name.epoch >= self.newest.epoch

    @rule(client=CLIENTS, is_commit=st.booleans())
    def end(self, client, is_commit):
        instance = self.instances[client]

        def act():
            instance.name = self.desk.end(
                instance.name, is_commit=is_commit, version=instance.version
            )

        if self._attempt(act):
            for value in instance.values:
                self.told[value] = is_commit
            self._forget(instance)

    @rule(client=CLIENTS, places=st.sets(PLACES, min_size=2), is_commit=st.booleans())
    def transact(self, client, places, is_commit):
        """A whole transaction that nothing disturbs until it is decided."""
        self.begin(client)
        for place in sorted(places):
            self.write(client, place)
        self.end(client, is_commit)

    def _forget(self, instance):
        if instance.values:
            self.together.append(instance.values)
        instance.values = []

    # --- markers, time, failures -----------------------------------------------------------------

    @rule(place=PLACES, data=st.data())
    def write_one_marker(self, place, data):
        if not self.desk.wanted:
            return
        wanted = data.draw(st.sampled_from(self.desk.wanted))
        if at(place) not in wanted.partitions:
            return
        self._mark(wanted, place)
        done = self.written.setdefault(id(wanted), set())
        done.add(place)
        self._finish_if_done(wanted, done)

    def _finish_if_done(self, wanted: MarkersWanted, done: set[str]) -> None:
        if {at(one) for one in done} == wanted.partitions:
            self._finish(wanted)

    def _mark(self, wanted: MarkersWanted, place: str) -> None:
        self.desk.log_of(at(place)).mark(wanted.producer, is_commit=wanted.is_commit)

    def _finish(self, wanted: MarkersWanted) -> None:
        self.desk.wanted = [one for one in self.desk.wanted if one is not wanted]
        self.written.pop(id(wanted), None)
        self.desk.complete(wanted)

    @rule()
    def fail_over(self):
        self.written.clear()
        self.desk.reload()

    @rule(ms=st.sampled_from([100, 6_000, 11_000]))
    def pass_time(self, ms):
        self.desk.advance(ms)

    # --- what holds ------------------------------------------------------------------------------

    @invariant()
    def complete_means_that_no_log_has_it_open(self):
        if not len(self.desk.shard):
            return
        found = self.desk.shard.describe(ID)
        if found.status in (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT):
            assert not any(log.open for log in self.desk.logs.values())

    @invariant()
    def nothing_that_was_aborted_is_ever_seen(self):
        for value in self._committed():
            assert self.told.get(value) is not False

    def _committed(self) -> set[str]:
        return {value for log in self.desk.logs.values() for value in log.committed}

    def teardown(self):
        """Everything is ended: each transaction is there whole or not at all, as was told."""
        self.desk.finish()
        self.desk.advance(2 * TIMEOUT_MS)
        self.desk.finish()
        assert not any(log.open for log in self.desk.logs.values())
        committed = self._committed()
        for value, is_commit in self.told.items():
            assert (value in committed) is is_commit
        for values in self.together:
            assert len({value in committed for value in values}) == 1


@pytest.mark.slow
def test_I19_I20_I22_transactions_are_whole_whatever_happens_when():
    run_state_machine_as_test(
        Transactions, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )


class Hasty(Transactions):
    """Writes Complete after the first marker, as if the others could not fail."""

    def _finish_if_done(self, wanted, done):
        self._finish(wanted)


@pytest.mark.slow
def test_the_model_finds_a_complete_that_comes_too_early():
    unshrunk = settings(
        max_examples=300, stateful_step_count=40, deadline=None, phases=(Phase.generate,)
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Hasty, settings=unshrunk)
