"""The headers of delayed records, and what it costs to import them."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import tidemill


def test_a_delay_is_given_as_text_or_timedelta():
    assert tidemill.Delay("10m") == [("tidemill.delay-ms", b"600000")]
    assert tidemill.Delay(timedelta(minutes=10)) == tidemill.Delay("10m")
    assert tidemill.Delay("1s", id="a") == [
        ("tidemill.delay-ms", b"1000"),
        ("tidemill.message-id", b"a"),
    ]


def test_a_part_of_a_millisecond_is_rounded_up_so_that_nothing_comes_early():
    assert tidemill.Delay(timedelta(microseconds=1)) == [("tidemill.delay-ms", b"1")]
    late = datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)
    assert tidemill.DeliverAt(late) == [("tidemill.deliver-at", b"1001")]


def test_a_time_is_epoch_milliseconds_whatever_its_zone():
    noon = datetime(2026, 11, 17, 12, tzinfo=UTC)
    assert tidemill.DeliverAt(noon, id="é") == [
        ("tidemill.deliver-at", b"1794916800000"),
        ("tidemill.message-id", "é".encode()),
    ]
    abroad = noon.astimezone(timezone(timedelta(hours=9)))
    assert tidemill.DeliverAt(abroad) == tidemill.DeliverAt(noon)


def test_a_schedule_has_its_line_zone_and_id():
    assert tidemill.Schedule("0 9 * * 1", id="weekly") == [
        ("tidemill.schedule", b"0 9 * * 1"),
        ("tidemill.message-id", b"weekly"),
    ]
    zoned = tidemill.Schedule("0 9 * * 1", id="weekly", zone="Europe/Berlin")
    assert zoned[0] == ("tidemill.schedule", b"CRON_TZ=Europe/Berlin 0 9 * * 1")


def test_a_command_names_an_id_or_a_ticket():
    command = ("tidemill.command", b"cancel")
    assert tidemill.Cancel("ann-7") == [command, ("tidemill.target", b"id:ann-7")]
    assert tidemill.Cancel("12") == [command, ("tidemill.target", b"id:12")]
    assert tidemill.Cancel(12) == [command, ("tidemill.target", b"12")]


def test_a_move_has_a_new_time_or_a_new_delay():
    command = [("tidemill.command", b"move"), ("tidemill.target", b"7")]
    assert tidemill.Move(7, "10m") == [*command, *tidemill.Delay("10m")]
    noon = datetime(2026, 11, 17, 12, tzinfo=UTC)
    assert tidemill.Move(7, noon) == [*command, *tidemill.DeliverAt(noon)]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tidemill.Delay("soon"), "expected a length of time"),
        (lambda: tidemill.Delay(timedelta(seconds=-1)), "in the past"),
        (lambda: tidemill.DeliverAt(datetime(2026, 11, 17)), "no time zone"),
        (lambda: tidemill.Delay("1s", id=""), "1 to 255 bytes"),
        (lambda: tidemill.Schedule("* * * * *", id="é" * 128), "1 to 255 bytes"),
        (lambda: tidemill.Cancel(""), "1 to 255 bytes"),
        (lambda: tidemill.Cancel(-1001), "not acknowledged"),
    ],
)
def test_what_no_broker_would_take_is_refused_at_once(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_headers_of_ones_own_are_added_as_to_any_list():
    assert isinstance(tidemill.Delay("1s"), list)
    assert [*tidemill.Delay("1s"), ("trace", b"7")][-1] == ("trace", b"7")


def test_the_headers_are_made_without_a_broker_or_an_event_loop():
    code = "import sys, tidemill; tidemill.Delay('1s'); print(*sys.modules)"
    source = Path(tidemill.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.fspath(source)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"asyncio", "tidemill.broker", "tidemill.client.producing.producer"}
    assert len([name for name in loaded if name.startswith("tidemill.")]) < 10
