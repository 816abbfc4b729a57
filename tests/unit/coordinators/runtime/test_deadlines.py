"""Deadlines that are moved far more often than they pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordinators.runtime.deadlines import Deadlines

ALL = 1_000_000


def test_deadline_is_due_at_its_time_and_only_once():
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    assert deadlines.take_due(9, ALL) == []
    assert deadlines.take_due(10, ALL) == ["a"]
    assert deadlines.take_due(10, ALL) == []
    assert "a" not in deadlines


def test_deadline_moved_to_a_later_time_does_not_come_early():
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("a", 30)
    assert deadlines.next_ms() == 30
    assert deadlines.take_due(29, ALL) == []
    assert deadlines.take_due(30, ALL) == ["a"]


def test_deadline_moved_to_an_earlier_time_comes_once():
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 30)
    deadlines.set("a", 10)
    assert deadlines.take_due(10, ALL) == ["a"]
    assert deadlines.next_ms() is None


def test_deadline_that_was_dropped_never_comes():
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.drop("a")
    deadlines.drop("never there")
    assert deadlines.next_ms() is None
    assert deadlines.take_due(ALL, ALL) == []


def test_deadline_that_was_dropped_and_set_again_comes_at_the_new_time():
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.drop("a")
    deadlines.set("a", 20)
    assert deadlines.take_due(19, ALL) == []
    assert deadlines.take_due(20, ALL) == ["a"]


def test_at_most_the_given_count_is_taken_and_the_rest_stays_due():
    deadlines: Deadlines[int] = Deadlines()
    for key in range(5):
        deadlines.set(key, 10 - key)
    assert deadlines.take_due(10, 2) == [4, 3]
    assert len(deadlines) == 3
    assert deadlines.take_due(10, ALL) == [2, 1, 0]


def test_equal_deadlines_keep_their_order():
    deadlines: Deadlines[str] = Deadlines()
    for key in "cab":
        deadlines.set(key, 10)
    assert deadlines.take_due(10, ALL) == ["c", "a", "b"]


def test_S38_heap_does_not_grow_with_heartbeats_or_with_members_that_join_and_leave():
    deadlines: Deadlines[int] = Deadlines()
    for beat in range(5_000):
        deadlines.set(-1, beat)
    for key in range(5_000):
        deadlines.set(key, 10)
        deadlines.drop(key)
    assert len(deadlines) == 1
    assert len(deadlines._heap) < 1_100


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "drop", "take"]), st.integers(0, 5), st.integers(0, 100)),
        max_size=40,
    )
)
def test_deadlines_agree_with_a_plain_dict(steps):
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    for verb, key, at in steps:
        if verb == "set":
            deadlines.set(key, at)
            model[key] = at
        elif verb == "drop":
            deadlines.drop(key)
            model.pop(key, None)
        else:
            due = sorted(key for key, deadline in model.items() if deadline <= at)
            assert sorted(deadlines.take_due(at, ALL)) == due
            for taken in due:
                del model[taken]
        assert deadlines.next_ms() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
