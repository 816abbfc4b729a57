from __future__ import annotations

import pytest

from tidemill.core.config.durations import parse_duration_ms, short_duration


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("30s", 30_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("1d2h3m4s5ms", 93_784_005),
    ],
)
def test_a_length_of_time_is_the_sum_of_its_parts(text, length_ms):
    assert parse_duration_ms(text) == length_ms


@pytest.mark.parametrize(
    "text", ["", "10", "m", "-1s", "1 s", "1.5h", "1y", "٣s", "9" * 16 + "s", "1s" * 6]
)
def test_anything_else_is_refused_with_examples(text):
    with pytest.raises(ValueError, match="10m, 1h30m"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (0, "0s"),
        (250, "250ms"),
        (12_000, "12s"),
        (12_345, "12s345ms"),
        (5_400_000, "1h30m"),
        (3_600_000, "1h"),
        (3_601_000, "1h"),
        (93_784_005, "1d2h"),
    ],
)
def test_a_length_of_time_is_shown_by_its_two_largest_units(length_ms, text):
    assert short_duration(length_ms) == text
