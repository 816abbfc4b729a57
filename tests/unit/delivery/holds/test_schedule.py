from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.limits import SCHEDULE_CHARS_MAX
from tidemill.delivery.holds.schedule import ScheduleError, next_tick_ms

BERLIN = ZoneInfo("Europe/Berlin")


def ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


def ticks(line: str, after: datetime, count: int) -> list[datetime]:
    found = [ms(after)]
    for _ in range(count):
        found.append(next_tick_ms(line, after_ms=found[-1]))
    return [datetime.fromtimestamp(one / 1000, UTC) for one in found[1:]]


@pytest.mark.parametrize(
    ("line", "after", "expected"),
    [
        ("0 9 * * 1", utc(2026, 11, 17), utc(2026, 11, 23, 9)),
        ("0 9 * * MON", utc(2026, 11, 17), utc(2026, 11, 23, 9)),
        ("*/15 * * * *", utc(2026, 11, 17, 10, 14, 59), utc(2026, 11, 17, 10, 15)),
        ("*/15 * * * *", utc(2026, 11, 17, 10, 15), utc(2026, 11, 17, 10, 30)),
        ("0 0 29 2 *", utc(2026, 11, 17), utc(2028, 2, 29)),
        ("0 0 L * *", utc(2026, 11, 17), utc(2026, 11, 30)),
        ("0 0 13 * 5", utc(2026, 11, 17), utc(2026, 11, 20)),  # the 13th, or a Friday
        ("*/5 * * * * *", utc(2026, 11, 17, 10, 0, 3), utc(2026, 11, 17, 10, 0, 5)),
        ("CRON_TZ=Europe/Berlin 0 9 * * 1", utc(2026, 11, 17), utc(2026, 11, 23, 8)),
        ("CRON_TZ=Asia/Kolkata 0 9 * * *", utc(2026, 11, 17), utc(2026, 11, 17, 3, 30)),
    ],
)
def test_the_next_tick_is_the_first_time_after_that_matches(line, after, expected):
    assert ticks(line, after, 1) == [expected]


def test_a_tick_is_later_than_asked_by_whole_seconds_at_least():
    assert next_tick_ms("* * * * * *", after_ms=1000) == 2000
    assert next_tick_ms("* * * * * *", after_ms=1001) == 2000
    assert next_tick_ms("* * * * * *", after_ms=999) == 1000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "wrong number of fields"),
        ("* * * *", "wrong number of fields"),
        ("* * * * * * *", "wrong number of fields"),
        ("60 * * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 0 0 * *", "bad day-of-month"),
        ("0 0 * 13 *", "bad month"),
        ("0 0 * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 */29 2 MON#5", "never ticks"),
        ("²² * * * *", "bad minute"),
        (f"{'9' * 200} * * * *", "bad minute"),
        ("CRON_TZ=Europe/Berlin", "wrong number of fields"),
        ("CRON_TZ=Europe/Nowhere 0 9 * * *", "no time zone 'Europe/Nowhere'"),
        ("CRON_TZ=Europe 0 9 * * *", "no time zone 'Europe'"),
        ("CRON_TZ= 0 9 * * *", "no time zone ''"),
        ("CRON_TZ=../../etc/passwd 0 9 * * *", "no time zone"),
        ("CRON_TZ=/etc/localtime 0 9 * * *", "no time zone"),
        ("CRON_TZ=a\0b 0 9 * * *", "no time zone"),
        (f"{'* ' * SCHEDULE_CHARS_MAX}", "characters at most"),
    ],
)
def test_a_line_that_is_no_schedule_or_never_ticks_is_refused(line, said):
    with pytest.raises(ScheduleError, match=said):
        next_tick_ms(line, after_ms=ms(utc(2026, 11, 17)))


def test_time_beyond_the_calendar_is_refused():
    for after_ms in (2**62, -(2**62), ms(utc(9999, 12, 31, 23, 59, 59))):
        with pytest.raises(ScheduleError, match="never ticks"):
            next_tick_ms("0 0 1 1 *", after_ms=after_ms)


# --- Berlin leaves out 02:00-03:00 on 2027-03-28 and repeats it on 2026-10-25 ---------------------


def test_a_time_that_is_left_out_comes_right_after_the_gap_once():
    found = ticks("CRON_TZ=Europe/Berlin 30 2 * * *", utc(2027, 3, 27), 3)
    assert found == [utc(2027, 3, 27, 1, 30), utc(2027, 3, 28, 1), utc(2027, 3, 29, 0, 30)]
    found = ticks("CRON_TZ=Europe/Berlin 0,30 2,3 * * *", utc(2027, 3, 28), 3)
    assert found == [utc(2027, 3, 28, 1), utc(2027, 3, 28, 1, 30), utc(2027, 3, 29)]


def test_a_time_that_there_is_twice_counts_the_first_time():
    found = ticks("CRON_TZ=Europe/Berlin 30 2 * * *", utc(2026, 10, 24, 12), 2)
    assert found == [utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30)]


def test_asked_inside_the_repeated_hour_no_tick_of_the_past_is_named():
    inside = datetime(2026, 10, 25, 2, 20, tzinfo=BERLIN, fold=1)
    assert ticks("CRON_TZ=Europe/Berlin 30 2 * * *", inside, 1) == [utc(2026, 10, 26, 1, 30)]


def test_a_line_for_every_hour_goes_on_through_both_changes():
    for start in (utc(2026, 10, 24, 22), utc(2027, 3, 27, 22)):
        found = ticks("CRON_TZ=Europe/Berlin 0 * * * *", start, 6)
        assert found == [start + timedelta(hours=hour) for hour in range(1, 7)]


field = st.one_of(
    st.just("*"),
    st.integers(2, 7).map("*/{}".format),
    st.lists(st.integers(1, 12), min_size=1, max_size=3).map(lambda some: ",".join(map(str, some))),
)
zone = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"])


@given(field, field, field, zone, st.integers(0, 4_000_000_000))
def test_ticks_move_forward_by_minutes_and_match_in_their_zone(minute, hour, month, zone, after_s):
    line = f"CRON_TZ={zone} {minute} {hour} * {month} *"
    first = next_tick_ms(line, after_ms=after_s * 1000 + 1)
    second = next_tick_ms(line, after_ms=first)
    assert after_s * 1000 + 1 < first < second
    assert second - first >= 60_000
    local = datetime.fromtimestamp(first / 1000, ZoneInfo(zone))
    before = datetime.fromtimestamp(first / 1000 - 60, ZoneInfo(zone))
    if local.utcoffset() == before.utcoffset():  # else it is one that was left out
        assert _matches(minute, local.minute)
        assert _matches(hour, local.hour)
    assert _matches(month, local.month, start=1)


def _matches(field: str, value: int, start: int = 0) -> bool:
    if field == "*":
        return True
    if field.startswith("*/"):
        return (value - start) % int(field[2:]) == 0
    return value in map(int, field.split(","))
