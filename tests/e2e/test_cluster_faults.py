"""Three brokers on each store fail under idempotent producers and groups of both protocols."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.cluster_stores import BROKERS, Store
from tests.support.clients import DEADLINE_S
from tests.support.topics import partitions_of, wait_replicas
from tests.support.waiting import wait_until
from tidemill.testing.broker_process import TIDEMILL

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@contextmanager
def moving(store: Store, topic: str, brokers: str) -> Iterator[None]:
    """All partitions have begun to move; afterwards they are there."""
    before = _replicas(store, topic)
    command = [*TIDEMILL, "cluster", "reassign", topic, "--brokers", brokers]
    with subprocess.Popen(
        [*command, "--bootstrap", store.bootstrap], stderr=subprocess.DEVNULL
    ) as move:
        wait_until(lambda: _replicas(store, topic) != before, "nothing moves")
        yield
        move.wait(DEADLINE_S)  # it may have lost the broker that it asks
    wait_replicas(store.bootstrap, topic, set(map(int, brokers.split(","))))


def _replicas(store: Store, topic: str) -> list[list[int]]:
    return [one.replicas for one in partitions_of(store.bootstrap, topic).values()]


def test_F78_I1_I28_clients_and_groups_go_on_when_each_broker_is_killed_in_turn(store, work):
    for broker_id in range(BROKERS):
        store.kill(broker_id)
        work.goes_on()
        store.bring_back(broker_id)
    work.check()


def test_F100_I1_I28_brokers_that_are_killed_while_replicas_move_lose_nothing(store, work, topic):
    # Two replicas, both of which must be in sync: it goes on when the broker is back.
    for broker_id, brokers in enumerate(("1,2", "2,0", "0,1,2")):
        with moving(store, topic, brokers):
            store.kill(broker_id)
            store.bring_back(broker_id)
            work.goes_on()
    work.check()


def test_F100_I1_I28_brokers_that_stand_still_while_replicas_move_lose_nothing(store, work, topic):
    for broker_id, brokers in ((1, "0,2"), (2, "0,1,2")):
        with moving(store, topic, brokers):
            with store.paused(broker_id):
                pass
            work.goes_on()
    work.check()


def test_I8_I28_clients_and_groups_go_on_when_a_broker_stands_still(store, work):
    with store.paused(1):
        work.goes_on()
    work.goes_on()
    work.check()


def test_I1_I28_all_brokers_killed_together_and_again_while_they_start_lose_nothing(store, work):
    store.kill_all_twice()
    work.goes_on()
    work.check()
