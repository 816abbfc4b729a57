"""Parked requests: bounded, looked at once per turn, ended with the broker or their connection."""

from __future__ import annotations

import gc

import pytest

from tidemill.core.errors import InvariantViolation
from tidemill.core.limits import LOOKED_AT_PARTITIONS_PER_TURN, PARKED_PARTITIONS_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import TimerWheel
from tidemill.server.fetching.parked_requests import ParkedRequests
from tidemill.server.limits.memory_pool import MemoryPool

WAIT_MS = 500
LOOKED_AT, FINISHED = "looked at", "finished"


class Timers:
    """The deadlines of `LoopTimers`, on a clock that a test moves."""

    def __init__(self):
        self.wheel = TimerWheel(now=0.0)
        self.now = 0.0

    def add_after(self, delay_s, action):
        return self.wheel.add(self.now + delay_s, action)

    def advance(self, delay_s):
        self.now += delay_s
        self.wheel.advance(self.now)


class Parking:
    """The requests that a test parks, on a loop that runs what was scheduled when told to."""

    def __init__(self):
        self.scheduled = []
        self.seen = []
        self.timers = Timers()
        self.requests = ParkedRequests(self.scheduled.append, self.timers)

    def run_turn(self):
        scheduled = self.scheduled[:]
        self.scheduled.clear()
        for action in scheduled:
            action()

    def try_park(self, name, partitions=1, *, is_ready=True, outcome=None, error=None, memory=None):
        """Park a request; its partitions and its answer, or None."""
        watched = [{} for _ in range(partitions)]

        def note(what):
            self.seen.append((name, what))
            if error is not None:
                raise error

        def look():
            note(LOOKED_AT)
            return is_ready

        def finish():
            note(FINISHED)
            return outcome or f"answer of {name}"

        answer = self.requests.try_park(
            watched, wait_ms=WAIT_MS, is_ready=look, finish=finish, memory=memory
        )
        return None if answer is None else Parked(watched, answer)


class Parked:
    def __init__(self, watched, answer):
        self.watched = watched
        self.answer = answer
        self.values = []
        answer.then(self.values.append)

    def wake(self, index=0):
        for watcher in self.watched[index]:
            watcher.wake()


@pytest.fixture
def parking():
    return Parking()


def test_a_request_that_is_woken_twice_is_looked_at_once_after_the_turn(parking):
    parked = parking.try_park("a", 2)
    parked.wake(0)
    parked.wake(1)
    assert parking.seen == []
    parking.run_turn()
    assert parking.seen == [("a", LOOKED_AT), ("a", FINISHED)]
    assert parked.values == ["answer of a"]
    assert parking.scheduled == []


def test_a_request_that_is_not_ready_stays_parked_and_can_be_woken_again(parking):
    parked = parking.try_park("a", is_ready=False)
    for _ in range(2):
        parked.wake()
        parking.run_turn()
    assert parking.seen == [("a", LOOKED_AT), ("a", LOOKED_AT)]
    assert len(parking.requests) == 1


def test_an_answered_request_watches_nothing_and_has_no_deadline(parking):
    parked = parking.try_park("a", 3)
    parked.wake()
    parking.run_turn()
    assert parked.watched == [{}, {}, {}]
    assert (len(parking.requests), parking.requests.parked_partitions) == (0, 0)
    assert len(parking.timers.wheel) == 0


def test_an_answer_that_comes_later_is_passed_on(parking):
    later = Deferred()
    parked = parking.try_park("a", outcome=later)
    parked.wake()
    parking.run_turn()
    assert parked.values == []
    later.resolve("loaded")
    assert parked.values == ["loaded"]


def test_S40_a_turn_looks_at_so_many_partitions_and_the_next_turn_goes_on(parking):
    for number in range(4):
        parking.try_park(number, LOOKED_AT_PARTITIONS_PER_TURN // 2, is_ready=False).wake()
    parking.run_turn()
    assert [name for name, _ in parking.seen] == [0, 1]
    parking.run_turn()
    assert [name for name, _ in parking.seen] == [0, 1, 2, 3]


def test_S40_there_is_room_for_so_many_watched_partitions_and_no_more(parking):
    first = parking.try_park("a", PARKED_PARTITIONS_MAX - 1)
    assert parking.try_park("b", 2) is None
    parking.requests.abandon(first.answer)
    assert parking.try_park("b", 2) is not None
    assert parking.requests.parked_partitions == 2


def test_a_request_whose_time_is_up_is_answered_once_without_a_look(parking):
    parked = parking.try_park("a", is_ready=False)
    parked.wake()
    parking.timers.advance(WAIT_MS / 1000 - 0.1)
    assert parking.seen == []
    parking.timers.advance(0.2)
    parking.timers.advance(0.2)
    parking.run_turn()
    assert parking.seen == [("a", FINISHED)]
    assert parked.values == ["answer of a"]
    assert (len(parking.requests), parking.requests.parked_partitions) == (0, 0)


def test_an_abandoned_request_is_neither_looked_at_nor_answered(parking):
    parked = parking.try_park("a")
    parked.wake()
    parking.requests.abandon(parked.answer)
    parking.timers.advance(1.0)
    parking.run_turn()
    assert (parking.seen, parked.values, parked.watched) == ([], [], [{}])


def test_answers_that_were_never_parked_can_be_abandoned(parking):
    parking.requests.abandon(Deferred())


def test_S40_a_request_without_memory_is_answered_when_there_is_room(parking):
    pool = MemoryPool(100)
    pool.take(100)
    parked = parking.try_park("a", is_ready=False, memory=pool)
    parked.wake()
    parking.run_turn()
    assert parking.seen == []
    pool.give(50)
    parking.run_turn()
    assert parking.seen == [("a", FINISHED)]


def test_S40_the_memory_pool_forgets_an_abandoned_request(parking):
    pool = MemoryPool(100)
    pool.take(100)
    parked = parking.try_park("a", memory=pool)
    parking.requests.abandon(parked.answer)
    pool.give(100)
    assert parking.scheduled == []


def test_stopping_answers_all_requests_and_parks_none_from_then_on(parking):
    for name in "abc":
        parking.try_park(name, is_ready=False)
    parking.requests.stop()
    assert parking.seen == [("a", FINISHED), ("b", FINISHED), ("c", FINISHED)]
    assert parking.try_park("d") is None


def test_a_bug_in_one_request_closes_its_connection_and_the_others_are_looked_at(parking, caplog):
    broken = parking.try_park("a", error=ZeroDivisionError("oh"))
    sound = parking.try_park("b", is_ready=False)
    broken.wake()
    sound.wake()
    parking.run_turn()
    assert parking.seen == [("a", LOOKED_AT), ("b", LOOKED_AT)]
    assert broken.values == [None]
    assert (len(parking.requests), broken.watched) == (1, [{}])
    assert len(caplog.records) == 1


def test_a_broken_invariant_gets_out_and_the_queue_goes_on(parking):
    parking.try_park("a", error=InvariantViolation("oh")).wake()
    parking.try_park("b").wake()
    with pytest.raises(InvariantViolation):
        parking.run_turn()
    parking.run_turn()
    assert parking.seen[-1] == ("b", FINISHED)


def test_an_answered_request_leaves_nothing_to_the_garbage_collector(parking):
    gc.collect()
    gc.disable()
    try:
        parked = parking.try_park("a")
        parked.wake()
        parking.run_turn()
        del parked
        parking.seen.clear()
        assert gc.collect() == 0
    finally:
        gc.enable()
