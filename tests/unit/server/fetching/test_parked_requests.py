"""Parked requests: bounded, looked at once per turn, ended with the broker or their connection."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from tests.support.memory_peer import simulated
from tidemill.core.errors import InvariantViolation
from tidemill.core.limits import LOOKED_AT_PARTITIONS_PER_TURN, PARKED_PARTITIONS_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import LoopTimers
from tidemill.server.fetching.parked_requests import ParkedRequests
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.testing.manual_clock import SimClock

WAIT_MS = 500
LOOKED_AT, FINISHED = "looked at", "finished"


class Parking:
    """The requests that a test parks, on a loop that runs what was scheduled when told to."""

    def __init__(self):
        self.scheduled = []
        self.seen = []
        clock = SimClock(asyncio.get_running_loop().time)
        self.requests = ParkedRequests(self.scheduled.append, LoopTimers(clock))

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


class Outcome:
    """An answer that can be followed by a weak reference."""


class Parked:
    def __init__(self, watched, answer):
        self.watched = watched
        self.answer = answer
        self.values = []
        answer.then(self.values.append)

    def wake(self, index=0):
        for watcher in self.watched[index]:
            watcher.wake()


@simulated
async def test_a_request_that_is_woken_twice_is_looked_at_once_after_the_turn():
    parking = Parking()
    parked = parking.try_park("a", 2)
    parked.wake(0)
    parked.wake(1)
    assert parking.seen == []
    parking.run_turn()
    assert parking.seen == [("a", LOOKED_AT), ("a", FINISHED)]
    assert parked.values == ["answer of a"]
    assert parking.scheduled == []


@simulated
async def test_a_request_that_is_not_ready_stays_parked_and_can_be_woken_again():
    parking = Parking()
    parked = parking.try_park("a", is_ready=False)
    for _ in range(2):
        parked.wake()
        parking.run_turn()
    assert parking.seen == [("a", LOOKED_AT), ("a", LOOKED_AT)]
    assert len(parking.requests) == 1


@simulated
async def test_an_answered_request_watches_nothing_and_has_no_deadline():
    parking = Parking()
    parked = parking.try_park("a", 3)
    parked.wake()
    parking.run_turn()
    assert parked.watched == [{}, {}, {}]
    assert (len(parking.requests), parking.requests.parked_partitions) == (0, 0)
    await asyncio.sleep(1.0)
    assert parking.seen == [("a", LOOKED_AT), ("a", FINISHED)]


@simulated
async def test_an_answer_that_comes_later_is_passed_on():
    parking = Parking()
    later = Deferred()
    parked = parking.try_park("a", outcome=later)
    parked.wake()
    parking.run_turn()
    assert parked.values == []
    later.resolve("loaded")
    assert parked.values == ["loaded"]


@simulated
async def test_S40_a_turn_looks_at_so_many_partitions_and_the_next_turn_goes_on():
    parking = Parking()
    for number in range(4):
        parking.try_park(number, LOOKED_AT_PARTITIONS_PER_TURN // 2, is_ready=False).wake()
    parking.run_turn()
    assert [name for name, _ in parking.seen] == [0, 1]
    parking.run_turn()
    assert [name for name, _ in parking.seen] == [0, 1, 2, 3]


@simulated
async def test_S40_there_is_room_for_so_many_watched_partitions_and_no_more():
    parking = Parking()
    first = parking.try_park("a", PARKED_PARTITIONS_MAX - 1)
    assert parking.try_park("b", 2) is None
    parking.requests.abandon(first.answer)
    assert parking.try_park("b", 2) is not None
    assert parking.requests.parked_partitions == 2


@simulated
async def test_a_request_whose_time_is_up_is_answered_once_without_a_look():
    parking = Parking()
    parked = parking.try_park("a", is_ready=False)
    parked.wake()
    await asyncio.sleep(WAIT_MS / 1000 - 0.1)
    assert parking.seen == []
    await asyncio.sleep(0.2)
    await asyncio.sleep(0.2)
    parking.run_turn()
    assert parking.seen == [("a", FINISHED)]
    assert parked.values == ["answer of a"]
    assert (len(parking.requests), parking.requests.parked_partitions) == (0, 0)


@simulated
async def test_an_abandoned_request_is_neither_looked_at_nor_answered():
    parking = Parking()
    parked = parking.try_park("a")
    parked.wake()
    parking.requests.abandon(parked.answer)
    await asyncio.sleep(1.0)
    parking.run_turn()
    assert (parking.seen, parked.values, parked.watched) == ([], [], [{}])


@simulated
async def test_answers_that_were_never_parked_can_be_abandoned():
    parking = Parking()
    parking.requests.abandon(Deferred())


@simulated
async def test_S40_a_request_without_memory_is_answered_when_there_is_room():
    parking = Parking()
    pool = MemoryPool(100)
    pool.take(100)
    parked = parking.try_park("a", is_ready=False, memory=pool)
    parked.wake()
    parking.run_turn()
    assert parking.seen == []
    pool.give(50)
    parking.run_turn()
    assert parking.seen == [("a", FINISHED)]


@simulated
async def test_S40_the_memory_pool_forgets_an_abandoned_request():
    parking = Parking()
    pool = MemoryPool(100)
    pool.take(100)
    parked = parking.try_park("a", memory=pool)
    parking.requests.abandon(parked.answer)
    pool.give(100)
    assert parking.scheduled == []


@simulated
async def test_stopping_answers_all_requests_and_parks_none_from_then_on():
    parking = Parking()
    for name in "abc":
        parking.try_park(name, is_ready=False)
    parking.requests.stop()
    assert parking.seen == [("a", FINISHED), ("b", FINISHED), ("c", FINISHED)]
    assert parking.try_park("d") is None


@simulated
async def test_a_bug_in_one_request_closes_its_connection_and_the_others_are_looked_at(caplog):
    parking = Parking()
    broken = parking.try_park("a", error=ZeroDivisionError("oh"))
    sound = parking.try_park("b", is_ready=False)
    broken.wake()
    sound.wake()
    parking.run_turn()
    assert parking.seen == [("a", LOOKED_AT), ("b", LOOKED_AT)]
    assert broken.values == [None]
    assert (len(parking.requests), broken.watched) == (1, [{}])
    assert len(caplog.records) == 1


@simulated
async def test_a_broken_invariant_gets_out_and_the_queue_goes_on():
    parking = Parking()
    parking.try_park("a", error=InvariantViolation("oh")).wake()
    parking.try_park("b").wake()
    with pytest.raises(InvariantViolation):
        parking.run_turn()
    parking.run_turn()
    assert parking.seen[-1] == ("b", FINISHED)


@simulated
async def test_an_answered_request_leaves_nothing_to_the_garbage_collector():
    parking = Parking()
    gc.disable()
    try:
        outcome = Outcome()
        kept = weakref.ref(outcome)
        parked = parking.try_park("a", outcome=outcome)
        parked.wake()
        parking.run_turn()
        assert parked.values == [outcome]
        del parked, outcome
        assert kept() is None
    finally:
        gc.enable()


@simulated
async def test_stopping_leaves_out_what_a_closing_connection_abandoned():
    parking = Parking()
    broken = parking.requests.try_park(
        [{}], wait_ms=WAIT_MS, is_ready=lambda: True, finish=lambda: 1 // 0
    )
    other = parking.try_park("b")
    broken.then(lambda _answer: parking.requests.abandon(other.answer))  # one connection, closed
    parking.requests.stop()
    assert parking.seen == []
    assert other.values == []
