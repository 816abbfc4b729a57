"""Counters that cost an addition, and histograms whose quantiles are upper bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.telemetry import Histogram, Telemetry


def test_a_value_is_below_the_bound_of_its_bucket():
    histogram = Histogram()
    for micros in (0, 1, 2, 3, 1000, 1023, 1024):
        histogram.observe(micros / 1e6 + 1e-9)
    assert histogram.buckets[:3] == [1, 1, 2]
    assert (histogram.buckets[10], histogram.buckets[11]) == (2, 1)


def test_values_beyond_the_last_bound_are_counted_in_the_last_bucket():
    histogram = Histogram()
    histogram.observe(1e9)
    assert histogram.buckets[-1] == histogram.count == 1


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_quantile_is_an_upper_bound_within_a_factor_of_two(micros, share):
    histogram = Histogram()
    for value in micros:
        histogram.observe((value + 0.5) / 1e6)
    rank = max(1, -(-share * len(micros) // 1))
    exact = sorted(micros)[int(rank) - 1]
    assert exact < histogram.quantile_us(share) <= max(1, 2 * exact)


def test_an_empty_histogram_has_no_quantile():
    assert Histogram().quantile_us(0.5) == 0


@pytest.mark.parametrize("key", [0, 1, 18])
def test_an_api_always_gets_the_same_counters(key):
    telemetry = Telemetry()
    telemetry.api(key).requests += 1
    assert telemetry.api(key).requests == 1


def test_errors_are_counted_by_code():
    telemetry = Telemetry()
    for code in (3, 3, 35):
        telemetry.count_error(code)
    assert telemetry.error_codes == {3: 2, 35: 1}
