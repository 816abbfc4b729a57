"""Parked fetches: bounded, looked at once per turn, ended with the broker or their connection."""

from __future__ import annotations

import pytest

from tidemill.core.errors import InvariantViolation
from tidemill.core.limits import LOOKED_AT_PARTITIONS_PER_TURN, PARKED_PARTITIONS_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.server.fetching.parked_fetches import ReadyQueue


class Turns:
    """A loop that runs what was scheduled when a test says so."""

    def __init__(self):
        self.scheduled = []

    def soon(self, action):
        self.scheduled.append(action)

    def run(self):
        scheduled, self.scheduled = self.scheduled, []
        for action in scheduled:
            action()


class Fetch:
    def __init__(self, name, seen, watched_partitions=1, error=None):
        self.name = name
        self.seen = seen
        self.watched_partitions = watched_partitions
        self.error = error

    def look(self):
        self._do("look")

    def finish(self):
        self._do("finish")

    def abandon(self):
        self._do("abandon")

    def _do(self, what):
        self.seen.append((self.name, what))
        if self.error is not None:
            raise self.error


def park(queue, fetch):
    answer = Deferred()
    assert queue.try_park(answer, fetch)
    return answer


def test_a_fetch_that_is_poked_twice_is_looked_at_once_after_the_turn():
    turns, seen = Turns(), []
    queue = ReadyQueue(turns.soon)
    answer = park(queue, Fetch("a", seen))
    queue.poke(answer)
    queue.poke(answer)
    assert seen == []
    turns.run()
    assert seen == [("a", "look")]
    assert turns.scheduled == []


def test_S40_a_turn_looks_at_so_many_partitions_and_the_next_turn_goes_on():
    turns, seen = Turns(), []
    queue = ReadyQueue(turns.soon)
    for number in range(4):
        queue.poke(park(queue, Fetch(number, seen, LOOKED_AT_PARTITIONS_PER_TURN // 2)))
    turns.run()
    assert [name for name, _ in seen] == [0, 1]
    turns.run()
    assert [name for name, _ in seen] == [0, 1, 2, 3]


def test_S40_there_is_room_for_so_many_watched_partitions_and_no_more():
    queue, seen = ReadyQueue(Turns().soon), []
    first = park(queue, Fetch("a", seen, PARKED_PARTITIONS_MAX - 1))
    assert not queue.try_park(Deferred(), Fetch("b", seen, 2))
    queue.unpark(first)
    assert queue.try_park(Deferred(), Fetch("b", seen, 2))
    assert queue.parked_partitions == 2


def test_a_fetch_whose_time_is_up_is_finished_once():
    turns, seen = Turns(), []
    queue = ReadyQueue(turns.soon)
    answer = park(queue, Fetch("a", seen))
    queue.poke(answer)
    queue.finish(answer)
    queue.finish(answer)
    turns.run()
    assert seen == [("a", "finish")]
    assert (len(queue), queue.parked_partitions) == (0, 0)


def test_an_abandoned_fetch_is_neither_looked_at_nor_finished():
    turns, seen = Turns(), []
    queue = ReadyQueue(turns.soon)
    answer = park(queue, Fetch("a", seen))
    queue.poke(answer)
    queue.abandon(answer)
    queue.finish(answer)
    turns.run()
    assert seen == [("a", "abandon")]


def test_answers_that_were_never_parked_can_be_abandoned():
    ReadyQueue(Turns().soon).abandon(Deferred())


def test_stopping_finishes_everybody_and_parks_nobody_any_more():
    queue, seen = ReadyQueue(Turns().soon), []
    for name in "abc":
        park(queue, Fetch(name, seen))
    queue.stop()
    assert seen == [("a", "finish"), ("b", "finish"), ("c", "finish")]
    assert not queue.try_park(Deferred(), Fetch("d", seen))


def test_a_bug_in_one_fetch_closes_its_connection_and_the_others_are_looked_at(caplog):
    turns, seen = Turns(), []
    queue = ReadyQueue(turns.soon)
    broken = park(queue, Fetch("a", seen, error=ZeroDivisionError("oh")))
    well = park(queue, Fetch("b", seen))
    queue.poke(broken)
    queue.poke(well)
    turns.run()
    assert seen == [("a", "look"), ("b", "look")]
    closed = []
    broken.then(closed.append)
    assert closed == [None]
    assert len(queue) == 1
    assert len(caplog.records) == 1


def test_a_broken_invariant_gets_out_and_the_queue_goes_on():
    turns, seen = Turns(), []
    queue = ReadyQueue(turns.soon)
    queue.poke(park(queue, Fetch("a", seen, error=InvariantViolation("oh"))))
    queue.poke(park(queue, Fetch("b", seen)))
    with pytest.raises(InvariantViolation):
        turns.run()
    turns.run()
    assert seen[-1] == ("b", "look")
