from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.balancing import balance
from tidemill.core.balancing.balance import (
    Assignment,
    ReplicaCounts,
    Share,
    lacking,
    startable,
)
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import PARTITIONS_PLANNED_PER_SLICE
from tidemill.core.loop.steps import finished

NO_RACKS = {0: "", 1: "", 2: ""}
RACKS = {0: "a", 1: "a", 2: "b", 3: "b"}


def evened(*given, **more):
    return finished(balance.evened(*given, **more))


def filled(*given, **more):
    return finished(balance.filled(*given, **more))


def vacated(*given, **more):
    return finished(balance.vacated(*given, **more))


def resized(*given, **more):
    return finished(balance.resized(*given, **more))


def share_of(assignment: Assignment, sharers) -> Share:
    return Share.of(ReplicaCounts.of(assignment), sharers)


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


def test_a_new_replica_keeps_away_from_the_rack_of_a_broker_that_is_given_nothing_now():
    before = partitions((1, 9))
    racks = {0: "a", 1: "a", 2: "b", 9: "c"}
    assert after(before, vacated(before, racks, [9], usable=[0, 2])) == [(1, 2)]


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


def test_evening_and_filling_keep_the_rack_of_a_broker_that_is_given_nothing_now():
    before = partitions(*[(0, 1)] * 6)
    racks, usable = {0: "a", 1: "b", 2: "b"}, [0, 2]
    assert evened(before, racks, usable=usable) == {}
    assert filled(before, racks, [2], share_of(before, racks), usable=usable) == {}


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


def test_a_broker_that_can_give_nothing_away_is_looked_at_once():
    """The only one of its rack has a replica of every partition, and so far the most."""
    before = partitions(*[(0, 1, 3)] * 8 * PARTITIONS_PLANNED_PER_SLICE)
    racks = dict(enumerate("abbcc"))
    steps = balance.evened(before, racks, moves_max=40)
    assert sum(1 for _ in steps) < 200


# --- shares ---


def fill(before: Assignment, racks: dict[int, str], *joined: int, **more) -> list[tuple[int, ...]]:
    return after(before, filled(before, racks, joined, share_of(before, racks), **more))


def test_a_share_has_nothing_of_brokers_that_are_to_hold_nothing():
    before = partitions((0, 9), (9, 0), (1, 9), (1, 0))
    assert share_of(before, [0, 1]) == (2, 1)
    assert lacking(ReplicaCounts.of(before), [0, 1, 2], share_of(before, [0, 1, 2])) == [2]


def test_a_broker_gets_its_share_and_the_others_exchange_nothing():
    before = partitions(*[(0, 1)] * 4, (0,), (0,))
    spread = fill(before, NO_RACKS, 2)
    assert loads(spread, NO_RACKS) == [4, 3, 3]
    assert Counter(one[0] for one in spread)[2] == 2
    assert all({*new} - {*old} <= {2} for new, old in zip(spread, after(before, {}), strict=True))


def test_a_broker_gets_partitions_of_every_topic():
    before = {TopicPartition(topic, n): (0,) for topic in "abc" for n in range(4)}
    plan = filled(before, {0: "", 1: ""}, [1], share_of(before, [0, 1]))
    assert Counter(name.topic for name in plan) == {"a": 2, "b": 2, "c": 2}


def test_a_broker_that_was_there_is_given_nothing_by_the_way():
    before = partitions(*[(0,)] * 9)
    assert loads(fill(before, NO_RACKS, 2), NO_RACKS) == [6, 0, 3]


def test_fixed_partitions_count_and_stay():
    before = partitions(*[(0,)] * 6)
    fixed = set(list(before)[:5])
    assert fill(before, NO_RACKS, 2, fixed=fixed) == [(0,)] * 5 + [(2,)]
    spread = after(before, evened(before, NO_RACKS, fixed=fixed))
    assert spread[:5] == [(0,)] * 5
    assert spread[5] != (0,)


# --- bytes ---


def sized(*sizes: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", index): size for index, size in enumerate(sizes)}


def test_big_replicas_are_swapped_for_small_ones_until_the_bytes_are_even():
    before = partitions(*[(0,)] * 4, *[(1,)] * 4)
    sizes = sized(9, 9, 9, 9, 1, 1, 1, 1)
    assert evened(before, {0: "", 1: ""}) == {}
    plan = evened(before, {0: "", 1: ""}, sizes=sizes)
    assert len(plan) == 4
    spread = after(before, plan)
    assert loads(spread, {0: "", 1: ""}) == [4, 4]
    assert sum(size for size, one in zip(sizes.values(), spread, strict=True) if one == (0,)) == 20


def test_a_swap_that_copies_much_for_little_is_not_made():
    before = partitions(*[(0,)] * 2, *[(1,)] * 2)
    assert evened(before, {0: "", 1: ""}, sizes=sized(10, 10, 8, 8)) == {}


def test_one_replica_moves_alone_where_the_numbers_stay_even():
    before = partitions(*[(0,)] * 20, *[(1,)] * 20)
    plan = evened(before, {0: "", 1: ""}, sizes=sized(*[12] * 20, *[10] * 20))
    assert list(plan.values()) == [(1,)]


def test_a_broker_that_joins_gets_its_share_of_bytes():
    before = partitions(*[(0,)] * 8)
    sizes = sized(100, 100, 100, 100, 1, 1, 1, 1)
    plan = filled(before, {0: "", 1: ""}, [1], share_of(before, [0, 1]), sizes=sizes)
    assert sorted(sizes[name] for name in plan) == [1, 1, 100, 100]


def test_sizes_that_are_not_known_count_as_middle_ones():
    before = partitions(*[(0,)] * 3, *[(1,)] * 3)
    known = dict(list(sized(5, 5, 5, 5).items())[1:])
    assert evened(before, {0: "", 1: ""}, sizes=known) == {}


def test_a_partition_whose_size_nobody_has_told_is_not_swapped():
    before = partitions(*[(0,)] * 4, *[(1,)] * 4)
    known = {name: size for name, size in sized(99, 9, 9, 9, 1, 1, 1, 1).items() if size != 99}
    plan = evened(before, {0: "", 1: ""}, sizes=known)
    assert plan
    assert not plan.keys() - known.keys()
    assert evened(before, {0: "", 1: ""}, sizes=sized(9, 9, 9, 9)) == {}


def test_a_swap_can_make_room_for_another_move():
    replicas = [(0,), (0,), (0, 1, 2), (0,), (0,), (0,), (0, 1), (0, 1, 2), *[(0, 1, 3)] * 4]
    before = partitions(*replicas, (0, 4, 1))
    racks = dict(enumerate("abcaa"))
    sizes = sized(0, 0, 3)
    spread = partitions(*after(before, evened(before, racks, sizes=sizes)))
    assert evened(spread, racks, sizes=sizes) == {}


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


ASSIGNMENTS = st.lists(BROKERS, max_size=30).map(lambda replicas: partitions(*replicas))
SIZES = st.dictionaries(
    st.integers(0, 30).map(lambda index: TopicPartition("t", index)), st.integers(0, 10**12)
)
SOME_RACKS = st.lists(st.sampled_from("abc"), min_size=6, max_size=6)


def assert_keeps_replicas_and_racks(
    before: Assignment, spread: list[tuple[int, ...]], racks: dict[int, str]
) -> None:
    for old, new in zip(after(before, {}), spread, strict=True):
        assert len(set(new)) == len(new) == len(old)
        assert len({racks[one] for one in new}) >= len({racks[one] for one in old})


@given(ASSIGNMENTS, SOME_RACKS, SIZES)
def test_evening_keeps_replicas_and_racks_and_ends_where_nothing_is_left_to_do(
    before, names, sizes
):
    racks = dict(enumerate(names))
    plan = evened(before, racks, sizes=sizes)
    spread = after(before, plan)
    assert_keeps_replicas_and_racks(before, spread, racks)
    assert evened(partitions(*spread), racks, sizes=sizes) == {}
    turned = dict(reversed(before.items()))
    assert evened(turned, dict(reversed(racks.items())), sizes=sizes) == plan


@given(st.lists(BROKERS, max_size=30), st.lists(st.integers(0, 1_000), min_size=30, max_size=30))
def test_evening_ends_even_in_bytes_or_where_no_swap_is_worth_its_copies(replicas, sizes):
    before, racks = partitions(*replicas), dict.fromkeys(range(5), "")
    known = {TopicPartition("t", index): size for index, size in enumerate(sizes)}
    spread = after(before, evened(before, racks, sizes=known))
    counts = loads(spread, racks)
    assert max(counts) - min(counts) <= max(1, int(0.1 * sum(counts) / 5))
    held = loads_in_bytes(spread, sizes)
    full, empty = held.index(max(held)), held.index(min(held))
    gap = held[full] - held[empty]
    if gap > 0.1 * sum(held) / 5:
        given = [n for n, one in enumerate(spread) if full in one and empty not in one]
        taken = [n for n, one in enumerate(spread) if empty in one and full not in one]
        for one in given:
            for other in taken:
                change, copied = sizes[one] - sizes[other], sizes[one] + sizes[other]
                assert not (0 < change < gap and copied <= 4 * change)


def loads_in_bytes(assignment: list[tuple[int, ...]], sizes: list[int]) -> list[int]:
    return [
        sum(size for size, replicas in zip(sizes, assignment, strict=False) if one in replicas)
        for one in range(5)
    ]


@given(ASSIGNMENTS, SOME_RACKS, SIZES, st.sets(st.integers(0, 5)), st.sets(st.integers(0, 30)))
def test_filling_keeps_replicas_and_racks_and_gives_to_those_that_joined_only(
    before, names, sizes, joined, fixed_at
):
    racks = dict(enumerate(names))
    fixed = {name for name in before if name.partition in fixed_at}
    share = share_of(before, racks)
    plan = filled(before, racks, joined, share, fixed=fixed, sizes=sizes)
    spread = after(before, plan)
    assert_keeps_replicas_and_racks(before, spread, racks)
    assert fixed.isdisjoint(plan)
    had, has = loads(after(before, {}), racks), loads(spread, racks)
    for one, was, now in zip(racks, had, has, strict=True):
        assert now <= (max(was, share.replicas) if one in joined else was)
        assert now >= min(was, share.replicas)
    assert filled(partitions(*spread), racks, joined, share, fixed=fixed) == {}


@given(ASSIGNMENTS, st.sets(st.integers(0, 5)))
def test_without_racks_everybody_who_joins_gets_the_whole_share(before, joined):
    racks = dict.fromkeys(range(6), "")
    spread = partitions(*fill(before, racks, *joined))
    share = share_of(before, racks)
    assert lacking(ReplicaCounts.of(spread), joined, share._replace(leads=0)) == []


# --- resizing, starting, electing ---


def test_a_topic_gets_more_or_fewer_replicas_and_keeps_the_first():
    before = {**partitions((0,), (1,)), TopicPartition("u", 0): (2,)}
    grown = resized(before, NO_RACKS, 3, "t")
    assert grown == partitions((0, 1, 2), (1, 0, 2))
    assert resized(grown, NO_RACKS, 1, "t") == partitions((0,), (1,))


def test_a_topic_that_gets_fewer_replicas_keeps_those_on_brokers_that_are_there():
    """The move ends when all that stay are in sync: one that is away would be waited for."""
    before = partitions((2, 0, 1), (0, 2, 1), (2, 3))
    plan = resized(before, NO_RACKS, 2, "t", usable=[0, 1])
    assert after(before, plan) == [(0, 1), (0, 1), (2, 3)]
    assert after(before, resized(before, NO_RACKS, 1, "t", usable=[0, 1]))[2] == (2,)


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
    steps = balance.away_from_preferred(assignment, leaders)
    assert finished(steps) == names[:given_back]


# --- slices ---


class Looks(Mapping):
    """An assignment that counts how often a partition of it is looked at."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self.count = 0

    def __len__(self) -> int:
        return len(self._assignment)

    def __iter__(self):
        for name in self._assignment:
            self.count += 1
            yield name

    def __getitem__(self, name: TopicPartition) -> tuple[int, ...]:
        self.count += 1
        return self._assignment[name]


WIDE = partitions(*[(0, 1), (1, 0)] * 2_500)
TEN = dict.fromkeys(range(10), "")
TWO_RACKS = {0: "a", 1: "b", 2: "b"}
"""Most of what broker 0 holds cannot move."""
LOOKS_PER_SLICE = 6 * PARTITIONS_PLANNED_PER_SLICE


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        lambda looks: balance.vacated(looks, TEN, [0], moves_max=50),
        lambda looks: balance.filled(looks, TEN, [9], Share(1_000, 500), moves_max=50),
        lambda looks: balance.filled(looks, TWO_RACKS, [2], Share(3_000, 1_600), moves_max=50),
        lambda looks: balance.evened(looks, TEN, moves_max=50),
        lambda looks: balance.evened(looks, TWO_RACKS, moves_max=50),
        lambda looks: balance.evened(
            looks,
            dict.fromkeys(range(2), ""),
            sizes={name: 7 * name.partition**2 for name in WIDE},
            moves_max=50,
        ),
        lambda looks: balance.evened(
            looks, TEN, sizes={name: 7 * name.partition**2 for name in WIDE}, moves_max=50
        ),
        lambda looks: balance.away_from_preferred(looks, dict.fromkeys(WIDE, 0)),
    ],
)
def test_S11_no_slice_of_a_plan_looks_at_more_than_some_hundred_partitions(plan):
    looks = Looks(WIDE)
    most, seen = 0, 0
    for _ in plan(looks):
        most, seen = max(most, looks.count - seen), looks.count
    assert max(most, looks.count - seen) <= LOOKS_PER_SLICE
    assert looks.count >= len(WIDE)
