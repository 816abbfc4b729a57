"""The bound over the producers of all logs of a broker."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.support.batches import header
from tidemill.storage.state.producer_bound import ProducerBound
from tidemill.storage.state.producer_state import ProducerStates


def remembered(states: ProducerStates) -> list[int]:
    return sorted(producer.producer_id for producer in states.active())


def bounded(bound: ProducerBound, count: int) -> list[ProducerStates]:
    logs = [ProducerStates() for _ in range(count)]
    for states in logs:
        bound.adopt(states)
    return logs


def note(states: ProducerStates, producer_id: int, now_ms: int) -> None:
    states.update(header(now_ms, producer=(producer_id, 0, 0)), now_ms)


def test_S38_the_entries_idle_longest_go_first_whichever_partition_they_are_in():
    bound = ProducerBound(entries_max=4)
    first, second = bounded(bound, 2)
    for states, producer_id, now_ms in (
        (first, 1, 10),
        (second, 2, 20),
        (first, 3, 30),
        (second, 4, 40),
    ):
        note(states, producer_id, now_ms)
    note(first, 1, 50)  # no longer idle
    note(first, 5, 60)
    note(first, 6, 70)
    assert (remembered(first), remembered(second)) == ([1, 5, 6], [4])
    assert bound.count == 4


def test_what_leaves_a_log_makes_room_for_others():
    bound = ProducerBound(entries_max=3)
    first, second = bounded(bound, 2)
    note(first, 1, 10)
    note(first, 2, 20)
    assert first.expire(now_ms=115, expiration_ms=100) == 1
    note(second, 3, 30)
    note(second, 4, 40)
    assert (remembered(first), remembered(second)) == ([2], [3, 4])
    first.clear()
    note(second, 5, 50)
    assert remembered(second) == [3, 4, 5]
    bound.release(second)
    assert bound.count == 0


def test_a_released_log_is_neither_counted_nor_shortened():
    bound = ProducerBound(entries_max=2)
    gone, kept = bounded(bound, 2)
    note(gone, 1, 10)
    note(gone, 2, 20)
    bound.release(gone)
    for producer_id in (3, 4, 5):
        note(kept, producer_id, 30 + producer_id)
    note(gone, 6, 90)
    assert (remembered(gone), remembered(kept), bound.count) == ([1, 2, 6], [4, 5], 2)


def test_a_log_that_is_adopted_with_entries_is_held_to_the_bound():
    bound = ProducerBound(entries_max=3)
    (first,) = bounded(bound, 1)
    note(first, 1, 10)
    note(first, 2, 90)
    loaded = ProducerStates()
    for producer_id in (3, 4, 5):
        note(loaded, producer_id, producer_id * 10)
    bound.adopt(loaded)
    assert (remembered(first), remembered(loaded), bound.count) == ([2], [4, 5], 3)


def test_entries_that_replace_others_are_counted_once():
    bound = ProducerBound(entries_max=10)
    (states,) = bounded(bound, 1)
    for producer_id in (1, 2, 3):
        note(states, producer_id, producer_id)
    shorter = ProducerStates()
    note(shorter, 1, 1)
    states.replace(shorter)
    assert (remembered(states), bound.count) == ([1], 1)
    full = ProducerStates(producer_ids_max=1)
    bound.adopt(full)
    note(full, 7, 7)
    note(full, 8, 8)
    assert (remembered(full), bound.count) == ([8], 2)


@pytest.mark.parametrize("was_used", [False, True])
def test_I4_a_producer_is_remembered_although_the_clock_went_back(was_used):
    bound = ProducerBound(entries_max=2)
    first, second = bounded(bound, 2)
    if was_used:
        note(second, 9, 95)
        second.clear()
    note(first, 1, 100)
    note(first, 2, 100)
    note(second, 3, 90)
    assert (remembered(first), remembered(second), bound.count) == ([2], [3], 2)


def test_S38_a_released_log_takes_no_memory():
    bound, sizes = ProducerBound(entries_max=1_000), []
    tracemalloc.start()
    try:
        for _ in range(3):
            for number in range(100):
                states = ProducerStates()
                bound.adopt(states)
                for producer_id in range(10):
                    note(states, producer_id, number)
                bound.release(states)
            del states
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[2] - sizes[0] < 20_000  # two hundred logs had 2 MB
