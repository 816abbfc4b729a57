from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.ids import TopicPartition
from tidemill.spark.source.admission import TriggerLimits, admit, waiting_offsets

P = [TopicPartition("t", index) for index in range(6)]
waiting = st.lists(st.integers(0, 10_000), min_size=1, max_size=6)


def test_without_limits_a_batch_goes_to_the_ends():
    assert admit({P[0]: 5}, {P[0]: 9}, TriggerLimits()) == {P[0]: 9}


@given(waiting=waiting, limit=st.integers(1, 20_000))
def test_max_offsets_bounds_a_batch_and_is_used_up(waiting, limit):
    begun = {P[i]: 7 for i in range(len(waiting))}
    ends = {P[i]: 7 + count for i, count in enumerate(waiting)}
    got = admit(begun, ends, TriggerLimits(offsets_max=limit))
    assert all(begun[p] <= got[p] <= ends[p] for p in ends)
    taken = waiting_offsets(begun, got)
    assert taken <= limit
    assert taken >= min(limit, sum(waiting)) - 1  # at most one lost to the sum of fractions


def test_max_offsets_is_divided_by_what_waits():
    got = admit({P[0]: 0, P[1]: 0}, {P[0]: 900, P[1]: 100}, TriggerLimits(offsets_max=100))
    assert got == {P[0]: 90, P[1]: 10}


def test_max_bytes_takes_the_part_of_the_waiting_bytes_that_fits():
    got = admit(
        {P[0]: 0, P[1]: 0},
        {P[0]: 100, P[1]: 100},
        TriggerLimits(bytes_max=1_000),
        {P[0]: 9_000, P[1]: 1_000},
    )
    assert got == {P[0]: 10, P[1]: 10}


@given(waiting=waiting)
def test_a_batch_always_makes_progress(waiting):
    begun = {P[i]: 0 for i in range(len(waiting))}
    ends = {P[i]: count for i, count in enumerate(waiting)}
    sizes = {p: end * 1000 for p, end in ends.items()}
    got = admit(begun, ends, TriggerLimits(bytes_max=1), sizes)
    assert (waiting_offsets(begun, got) > 0) == (sum(waiting) > 0)


def test_an_end_before_the_position_moves_nothing():
    assert admit({P[0]: 9}, {P[0]: 5}, TriggerLimits()) == {P[0]: 9}
