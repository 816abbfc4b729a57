"""Copies of ended holds stay until their ends are durable, however many there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.delivery.holds.tickets.copy_pins import CopyPins

_steps = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.booleans()), max_size=30)


@given(_steps, st.integers(1, 4))
def test_pins_that_became_one_keep_all_that_each_of_them_keeps_and_go_with_the_last(
    steps, pins_max
):
    exact, few = CopyPins(), CopyPins(pins_max=pins_max)
    end_offset = 31
    for copy_offset, passed, is_settled in steps:
        end_offset += passed
        for pins in (exact, few):
            pins.pin(copy_offset, end_offset=end_offset)
            if is_settled:
                pins.settle(end_offset - 2)
        assert len(few.captured()) <= pins_max
        lowest, kept = exact.lowest(), few.lowest()
        assert (kept is None) == (lowest is None)
        assert kept is None or lowest is None or kept <= lowest
    few.settle(end_offset)
    assert few.lowest() is None
