"""How samples against another revision are judged, and which rows are; nothing is built here."""

from __future__ import annotations

import pytest

from bench.judgement import Bar, Held, Outcome, Verdict, judge
from bench.other_revision import judged_as_revision
from bench.rows import ROWS

COMMIT = "abc1234"


def outcome(unit: str, ours: float, against: str = COMMIT, bar: Bar | None = None) -> Outcome:
    bar = bar or Bar(">=" if "/s" in unit else "<=", 0.5)
    return Outcome(
        row="row", title="title", unit=unit, ours=[ours], theirs=[100], against=against, bar=bar
    )


@pytest.mark.parametrize(
    ("unit", "ours", "verdict"),
    [
        ("MB/s", 98, Verdict.MET),
        ("M rec/s", 97, Verdict.MISSED),
        ("ms", 102, Verdict.MET),
        ("ms", 103, Verdict.MISSED),
    ],
)
def test_a_rate_may_fall_and_a_time_grow_by_two_percent(unit, ours, verdict):
    assert judge(judged_as_revision(outcome(unit, ours), COMMIT)) is verdict


def test_bars_that_are_no_ratio_to_the_revision_hold_as_they_are():
    of_memory = outcome("MB", 103, bar=Bar("<=", 150, Held.VALUE))
    for one in (of_memory, outcome("MB/s", 60, "flush=os")):
        assert judged_as_revision(one, COMMIT) == one


def test_rows_about_one_broker_can_be_run_against_a_revision():
    keys = {row.key for row in ROWS if row.beside_rival}
    assert {"produce-100", "produce-1k-group", "consume-1k", "ack-latency", "start"} <= keys
    assert not [key for key in keys if key.startswith(("cluster-", "spark-", "ceiling-"))]
