from __future__ import annotations

import pytest

from tidemill.cli.start_position import parse_start_position
from tidemill.client.consuming.consumer import EARLIEST, LATEST, AtOffset, AtTime
from tidemill.core.errors import UserError

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", EARLIEST),
        ("end", LATEST),
        ("0", AtOffset(0)),
        ("12345", AtOffset(12345)),
        ("-10m", AtTime(NOW_MS - 600_000)),
        ("-250ms", AtTime(NOW_MS - 250)),
        ("-1d", AtTime(NOW_MS - 86_400_000)),
        ("-999999999d", AtTime(0)),
        ("2026-11-15T21:30:00Z", AtTime(1_794_778_200_000)),
        ("2026-11-15T22:30:00.250+01:00", AtTime(1_794_778_200_250)),
    ],
)
def test_every_form_of_a_start_position_is_parsed(text, position):
    assert parse_start_position(text, now_ms=NOW_MS) == position


@pytest.mark.parametrize(
    "text", ["", "start", "-10", "-10y", "10m", "1e3", "٣", "9" * 40, "2026-13-01"]
)
def test_anything_else_is_refused_with_the_valid_forms(text):
    with pytest.raises(UserError, match="beginning, end, an offset"):
        parse_start_position(text, now_ms=NOW_MS)


def test_a_time_before_every_record_means_the_first_possible_record():
    assert parse_start_position("1960-01-01T00:00:00Z", now_ms=NOW_MS) == AtTime(0)
