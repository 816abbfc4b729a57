"""H12: a follower's fetch costs as much as has changed, however many partitions it follows."""

from __future__ import annotations

import gc
import sys
from collections import Counter

import pytest

from tests.unit.server.handlers.data.test_replica_fetch import FOLLOWER, Follower, turn
from tests.unit.server.one_broker import NODE_ID, NOW_MS, OneBroker

FEW, MANY = 10, 1_000


def calls_of(work) -> int:
    """How many functions `work` calls: a measure of work that no other process disturbs."""
    counts: Counter[str] = Counter()

    def count(_frame, event, _argument) -> None:
        counts[event] += 1

    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counts["call"] + counts["c_call"]


def follower_of(partitions: int) -> Follower:
    broker = OneBroker()
    # The loop's time stands still: by the machine's clock, how many timers come due while calls are
    # counted would depend on how fast the code runs. `turn` runs them.
    broker.loop.time = lambda: 0.0
    broker.join_broker(FOLLOWER)
    replicas = [NODE_ID, FOLLOWER]
    broker.make_topic("orders", -1, assignments=dict.fromkeys(range(partitions), replicas))
    follower = Follower(broker)
    for first in range(0, partitions, 500):
        some = range(first, min(first + 500, partitions))
        follower.fetch(*(follower.at(index, 0) for index in some))
    while follower.fetch():
        pass
    return follower


def round_trip(follower: Follower) -> None:
    """One partition grows, is told of, and is acknowledged by a fetch that waits."""
    follower.broker.append("orders", NOW_MS, index=3)
    assert list(follower.fetch()) == [3]
    end = follower.broker.partition("orders", 3).log.log_end_offset
    waiting = follower.begin(follower.at(3, end))
    follower.broker.append("orders", NOW_MS, index=3)
    turn(follower.broker)
    assert list(follower.end(waiting)) == [3]
    follower.fetch(follower.at(3, end + 1))


@pytest.mark.slow
def test_H12_a_fetch_over_a_thousand_partitions_with_one_changed_costs_work_of_one():
    costs = []
    for partitions in (FEW, MANY):
        follower = follower_of(partitions)
        round_trip(follower)
        costs.append(calls_of(lambda follower=follower: round_trip(follower)))
        follower.broker.close()
    assert costs[0] == costs[1]
