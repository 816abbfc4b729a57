"""The arithmetic of the rows about views and held records; nothing is started."""

from __future__ import annotations

import pytest

from bench import queue_rows
from bench.judgement import Verdict, judge
from bench.processes import MeasurementFailed
from bench.queue_rows import lateness, lateness_ms, looked_mb_per_core_s, release_rate, releases
from bench.rows import ROWS
from tests.bench.fake_lab import FakeLab


def test_what_a_core_looks_at_is_counted_by_cpu_time():
    assert looked_mb_per_core_s(600, 2.0) == 300
    assert looked_mb_per_core_s(6, 0.0) == 600, "a tick at least"


def test_releases_are_counted_from_the_first_that_came():
    assert release_rate({"got": 400_000, "seconds": 10.0, "first_ms": 6_000.0}) == 100_000
    assert release_rate({"got": 1, "seconds": 6.0, "first_ms": 6_000.0}) == 1_000
    with pytest.raises(MeasurementFailed, match="not held"):
        release_rate({"got": 400_000, "seconds": 2.0, "first_ms": 20.0})


def test_lateness_is_what_a_record_takes_beyond_its_delay():
    assert lateness_ms(1_004_000) == 4.0
    assert lateness_ms(999_000) == -1.0
    with pytest.raises(MeasurementFailed, match="990 ms early"):
        lateness_ms(10_000)


def test_delayed_records_are_compared_with_plain_ones_of_the_same_size():
    lab = FakeLab(tidemill={"records_per_s": 1e6})
    lab.nothing_to_consume = True
    (found,) = queue_rows.delayed_produce(lab, "key", "title")
    assert judge(found) is Verdict.MET
    held, plain = lab.asked[2][-1], lab.asked[3][-1]
    assert held == "header=tidemill.delay-ms:3600000:1:1"
    assert plain.partition(":")[2] == held.partition(":")[2]


def test_a_broker_that_holds_nothing_is_not_measured():
    with pytest.raises(MeasurementFailed, match="not held"):
        queue_rows.delayed_produce(FakeLab(tidemill={"records_per_s": 1e6}), "key", "title")


def test_each_released_record_is_waited_for():
    lab = FakeLab(tidemill={"got": 400_000, "seconds": 10.0, "first_ms": 6_000.0})
    (found,) = releases(lab, "key", "title")
    assert set(found.ours) == {100_000}
    assert [one[:2] for one in lab.asked[:2]] == [("produce", 400_000), ("consume", 400_000)]


def test_lateness_has_a_bar_on_its_tail():
    lab = FakeLab(tidemill={"p50_us": 1_002_000, "p99_us": 1_150_000})
    middle, tail = lateness(lab, "key", "title")
    assert judge(middle) is Verdict.OPEN
    assert judge(tail) is Verdict.MISSED
    assert lab.asked[0] == ("e2e", 10_000, 8, 100, "all", "header=tidemill.delay-ms:1000:1:1")


def test_each_bar_about_views_and_delays_has_a_row():
    keys = {row.key for row in ROWS}
    assert {"view-look", "view-again", "delayed-produce", "releases", "lateness"} <= keys
