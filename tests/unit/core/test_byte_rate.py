"""A bound on bytes per second, shared by all who take."""

from __future__ import annotations

from tidemill.core.byte_rate import NO_BOUND, ByteRate


def test_whoever_takes_waits_until_all_that_was_taken_is_paid_for():
    rate = ByteRate(lambda: 100)
    assert rate.take(50, now=10.0) == 0.5
    assert rate.take(100, now=10.25) == 1.25
    assert rate.take(100, now=20.0) == 1.0


def test_without_a_bound_nobody_waits_also_not_for_what_was_taken_before():
    bounds = [100]
    rate = ByteRate(lambda: bounds[0])
    rate.take(1_000, now=0.0)
    bounds[0] = NO_BOUND
    assert rate.take(1_000_000, now=1.0) == 0.0
