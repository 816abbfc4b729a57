"""The assignors: plans are complete, exclusive and even, and no partition moves without need."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.coordinators.group.consumer.assignors import (
    ASSIGNORS,
    NOTHING,
    Partitions,
    Subscriber,
    TopicShape,
)

T, U, V = (TopicShape(UUID(int=number), count) for number, count in ((1, 6), (2, 6), (3, 4)))
SHAPES = {"t": T, "u": U, "v": V}


def subscriber(
    member_id: str, *topics: str, target: Partitions = NOTHING, instance_id: str | None = None
) -> Subscriber:
    return Subscriber(member_id, instance_id, topics, target)


def again(rows: dict[str, Partitions], *subscribers: Subscriber) -> list[Subscriber]:
    """The members with these rows as their targets."""
    return [one._replace(target=rows.get(one.member_id, NOTHING)) for one in subscribers]


def counts(rows: dict[str, Partitions]) -> list[int]:
    return [sum(map(len, row.values())) for row in rows.values()]


def pairs(row: Partitions) -> set[tuple[UUID, int]]:
    return {(topic_id, number) for topic_id, numbers in row.items() for number in numbers}


# --- uniform -------------------------------------------------------------------------------------


def test_T49_six_partitions_split_evenly_over_one_two_and_three_members():
    uniform, shapes = ASSIGNORS["uniform"], {"t": T}
    members = [subscriber(name, "t") for name in ("a", "b", "c")]

    alone = uniform(members[:1], shapes)
    two = uniform(again(alone, *members[:2]), shapes)
    three = uniform(again(two, *members), shapes)

    assert alone == {"a": {T.topic_id: (0, 1, 2, 3, 4, 5)}}
    assert two == {"a": {T.topic_id: (0, 1, 2)}, "b": {T.topic_id: (3, 4, 5)}}
    assert three == {
        "a": {T.topic_id: (0, 1)},
        "b": {T.topic_id: (3, 4)},
        "c": {T.topic_id: (2, 5)},
    }


def test_T49_member_that_keeps_its_partitions_keeps_the_same_row_object():
    uniform = ASSIGNORS["uniform"]
    members = [subscriber(name, "t", "u") for name in ("a", "b", "c")]
    rows = uniform(members, SHAPES)
    same = uniform(again(rows, *members), SHAPES)
    assert all(same[name] is rows[name] for name in rows)


def test_partitions_of_a_member_that_left_go_to_the_others_and_nothing_else_moves():
    uniform = ASSIGNORS["uniform"]
    members = [subscriber(name, "t") for name in ("a", "b", "c")]
    rows = uniform(members, {"t": T})
    after = uniform(again(rows, *members[:2]), {"t": T})
    assert counts(after) == [3, 3]
    assert all(pairs(rows[name]) <= pairs(after[name]) for name in ("a", "b"))


def test_more_members_than_partitions_leaves_some_with_nothing():
    members = [subscriber(f"m{number}", "t") for number in range(9)]
    assert sorted(counts(ASSIGNORS["uniform"](members, {"t": T}))) == [0, 0, 0, 1, 1, 1, 1, 1, 1]


def test_members_get_a_mix_of_topics_rather_than_one_topic_each():
    rows = ASSIGNORS["uniform"]([subscriber("a", "t", "u"), subscriber("b", "t", "u")], SHAPES)
    assert all(len(row) == 2 for row in rows.values())


def test_members_with_different_subscriptions_are_evened_out_where_they_overlap():
    uniform = ASSIGNORS["uniform"]
    members = [subscriber("a", "t", "v"), subscriber("b", "t"), subscriber("c", "v")]
    alone = uniform(members[:1], SHAPES)
    rows = uniform(again(alone, *members), SHAPES)
    assert sorted(counts(rows)) == [3, 3, 4]
    assert set(rows["b"]) == {T.topic_id}
    assert set(rows["c"]) == {V.topic_id}


def test_topic_that_does_not_exist_is_passed_over():
    rows = ASSIGNORS["uniform"]([subscriber("a", "absent", "v")], SHAPES)
    assert rows == {"a": {V.topic_id: (0, 1, 2, 3)}}


@pytest.mark.parametrize("name", ["uniform", "range"])
def test_no_members_or_no_subscriptions_give_an_empty_plan(name):
    assign = ASSIGNORS[name]
    assert assign([], SHAPES) == {}
    assert assign([subscriber("a")], SHAPES) == {"a": NOTHING}


def test_rows_that_make_no_sense_are_put_right():
    """Two owners, numbers out of range, a foreign topic: the log may be old."""
    gone = UUID(int=99)
    members = [
        subscriber("a", "v", target={V.topic_id: (-1, 0, 1, 7), gone: (0,)}),
        subscriber("b", "v", target={V.topic_id: (0, 1, 2, 3)}),
    ]
    rows = ASSIGNORS["uniform"](members, SHAPES)
    assert rows == {"a": {V.topic_id: (0, 1)}, "b": {V.topic_id: (2, 3)}}


# --- range ---------------------------------------------------------------------------------------


def test_range_gives_runs_that_match_between_topics_of_the_same_size():
    members = [subscriber(name, "t", "u", "v") for name in ("a", "b", "c")]
    rows = ASSIGNORS["range"](members, SHAPES)
    assert rows["a"] == {T.topic_id: (0, 1), U.topic_id: (0, 1), V.topic_id: (0, 1)}
    assert rows["b"] == {T.topic_id: (2, 3), U.topic_id: (2, 3), V.topic_id: (2,)}
    assert rows["c"] == {T.topic_id: (4, 5), U.topic_id: (4, 5), V.topic_id: (3,)}


def test_range_orders_static_members_by_instance_id_so_that_a_restart_moves_nothing():
    assign = ASSIGNORS["range"]
    before = assign(
        [subscriber("z", "v", instance_id="1"), subscriber("y", "v", instance_id="2")], SHAPES
    )
    after = assign(
        [subscriber("x", "v", instance_id="1"), subscriber("y", "v", instance_id="2")], SHAPES
    )
    assert (after["x"], after["y"]) == (before["z"], before["y"])


def test_range_gives_nothing_to_members_beyond_the_partitions():
    rows = ASSIGNORS["range"]([subscriber(f"m{n}", "v") for n in range(5)], SHAPES)
    assert rows["m4"] == {}


def test_range_returns_the_same_row_where_it_stays():
    assign = ASSIGNORS["range"]
    members = [subscriber("a", "t"), subscriber("b", "t")]
    rows = assign(members, SHAPES)
    same = assign(again(rows, *members), SHAPES)
    assert all(same[name] is rows[name] for name in rows)


# --- any group -----------------------------------------------------------------------------------

topic_sets = st.lists(st.sampled_from(["t", "u", "v", "w"]), unique=True, max_size=4).map(
    lambda names: tuple(sorted(names))
)
groups = st.lists(st.lists(topic_sets, max_size=6), min_size=1, max_size=4)
sizes = st.fixed_dictionaries({name: st.integers(0, 7) for name in "tuv"})


@pytest.mark.parametrize("name", ["uniform", "range"])
@settings(max_examples=60)
@given(history=groups, counts_by_topic=sizes)
def test_I26_I27_every_partition_has_one_owner_that_wants_it(name, history, counts_by_topic):
    shapes = {
        topic: TopicShape(UUID(int=ord(topic)), count) for topic, count in counts_by_topic.items()
    }
    rows: dict[str, Partitions] = {}
    for subscriptions in history:
        members = [subscriber(f"m{n}", *topics) for n, topics in enumerate(subscriptions)]
        rows = ASSIGNORS[name](again(rows, *members), shapes)
        owned = [pair for row in rows.values() for pair in sorted(pairs(row))]
        wanted = {topic for topics in subscriptions for topic in topics if topic in shapes}
        assert sorted(owned) == sorted(
            (shapes[topic].topic_id, number)
            for topic in wanted
            for number in range(shapes[topic].partition_count)
        )
        for member in members:
            allowed = {shapes[topic].topic_id for topic in member.topics if topic in shapes}
            assert set(rows[member.member_id]) <= allowed


@settings(max_examples=60)
@given(members=st.lists(st.integers(1, 9), min_size=2, max_size=5), count=st.integers(0, 40))
def test_uniform_is_as_even_as_can_be_and_moves_no_more_than_it_must(members, count):
    shapes = {"t": TopicShape(UUID(int=1), count)}
    rows: dict[str, Partitions] = {}
    for size in members:
        group = [subscriber(f"m{n}", "t") for n in range(size)]
        before = again(rows, *group)
        rows = ASSIGNORS["uniform"](before, shapes)
        assert max(counts(rows)) - min(counts(rows)) <= 1
        kept = sum(len(pairs(one.target) & pairs(rows[one.member_id])) for one in before)
        share, extra = divmod(count, size)
        held = sorted((len(pairs(one.target)) for one in before), reverse=True)
        could = sum(min(has, share + (place < extra)) for place, has in enumerate(held))
        assert kept == could
