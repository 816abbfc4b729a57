from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.balance import (
    Assignment,
    away_from_preferred,
    evened,
    resized,
    startable,
    vacated,
)
from tidemill.core.ids import TopicPartition

NO_RACKS = {0: "", 1: "", 2: ""}
RACKS = {0: "a", 1: "a", 2: "b", 3: "b"}


def partitions(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("t", index): one for index, one in enumerate(replicas)}


def after(before: Assignment, plan: Assignment) -> list[tuple[int, ...]]:
    return [tuple(one) for _, one in sorted({**before, **plan}.items())]


def loads(assignment: list[tuple[int, ...]], brokers: Assignment | dict[int, str]) -> list[int]:
    held = Counter(one for replicas in assignment for one in replicas)
    return [held[one] for one in brokers]


# --- moving off ---


def test_everything_moves_off_a_broker_to_those_that_hold_least():
    before = partitions((2, 0), (0, 2), (0, 1), (2,))
    assert after(before, vacated(before, NO_RACKS, [2])) == [(1, 0), (0, 1), (0, 1), (0,)]


def test_a_replica_without_another_broker_stays():
    before = partitions((0, 1, 2))
    assert vacated(before, NO_RACKS, [2]) == {}


def test_a_replica_goes_to_a_rack_without_one():
    before = partitions((0, 9), (2, 9))
    assert after(before, vacated(before, RACKS, [9])) == [(0, 3), (2, 1)]


# --- evening ---


def test_a_new_broker_gets_its_share_of_replicas_and_leaderships():
    before = partitions(*[(0, 1)] * 6)
    spread = after(before, evened(before, NO_RACKS))
    assert loads(spread, NO_RACKS) == [4, 4, 4]
    assert Counter(one[0] for one in spread) == {0: 2, 1: 2, 2: 2}


def test_what_is_even_stays():
    before = partitions((0, 1), (1, 2), (2, 0))
    assert evened(before, NO_RACKS) == {}


def test_evening_puts_no_two_replicas_into_one_rack():
    before = partitions(*[(0, 2)] * 8)
    spread = after(before, evened(before, RACKS))
    assert all(RACKS[one] != RACKS[other] for one, other in spread)
    assert loads(spread, RACKS) == [4, 4, 4, 4]


def test_leaderships_pass_along_brokers_that_share_no_partition():
    before = partitions((0, 1), (0, 1), (1, 2))
    turned = after(before, evened(before, NO_RACKS))
    assert Counter(one[0] for one in turned) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("moves_max", [0, 1, 7])
def test_the_beginning_of_a_plan_has_no_more_moves_than_asked_for(moves_max):
    before = partitions(*[(0, 1)] * 60)
    assert len(evened(before, NO_RACKS, moves_max=moves_max)) == moves_max
    assert len(vacated(before, NO_RACKS, [0], moves_max=moves_max)) == moves_max


def test_a_plan_that_is_made_in_pieces_ends_even():
    before, rounds = partitions(*[(0, 1)] * 60), 0
    while plan := evened(before, NO_RACKS, moves_max=7):
        before, rounds = {**before, **plan}, rounds + 1
    held = loads(after(before, {}), NO_RACKS)
    assert max(held) - min(held) <= 4  # a tenth of the mean
    assert Counter(one[0] for one in before.values()) == {0: 20, 1: 20, 2: 20}
    assert rounds > 1


BROKERS = st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True).map(tuple)


@given(st.lists(BROKERS, max_size=30))
def test_a_plan_keeps_all_replicas_apart_and_ends_even(replicas):
    before = partitions(*replicas)
    racks = dict.fromkeys(range(5), "")
    spread = after(before, evened(before, racks))
    assert [len(one) for one in spread] == [len(one) for one in replicas]
    assert all(len(set(one)) == len(one) for one in spread)
    held = loads(spread, racks)
    assert max(held) - min(held) <= max(1, int(0.1 * sum(held) / 5))
    assert evened(partitions(*spread), racks) == {}


# --- resizing, starting, electing ---


def test_a_topic_gets_more_or_fewer_replicas_and_keeps_the_first():
    before = {**partitions((0,), (1,)), TopicPartition("u", 0): (2,)}
    grown = resized(before, NO_RACKS, 3, "t")
    assert grown == partitions((0, 1, 2), (1, 0, 2))
    assert resized(grown, NO_RACKS, 1, "t") == partitions((0,), (1,))


def test_a_broker_takes_and_gives_four_partitions_at_once():
    before = partitions(*[(0,)] * 9)
    plan = dict.fromkeys(before, (1,))
    assert len(startable(plan, before, [])) == 4
    assert len(startable(plan, before, [((1,), (2,))] * 3)) == 1
    assert startable(plan, before, [((2,), (0,))] * 4) == {}


@pytest.mark.parametrize(("away", "given_back"), [(1, 0), (2, 2)])
def test_leaders_are_given_back_where_over_a_tenth_is_away(away, given_back):
    names = list(partitions(*[(0, 1)] * 10))
    assignment = dict.fromkeys(names, (0, 1))
    leaders = dict.fromkeys(names, 0) | dict.fromkeys(names[:away], 1)
    assert away_from_preferred(assignment, leaders) == names[:given_back]
