"""The arithmetic of the bench and its output; no test here starts a broker."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest

from bench.judgement import (
    Bar,
    Held,
    Outcome,
    Sample,
    Verdict,
    alternate,
    column,
    held_value,
    histogram_quantile,
    judge,
    ratio,
    round_ratios,
)
from bench.metrics_page import buckets_between, buckets_sum, parse_buckets
from bench.plot import margin
from bench.raw_driver import BATCHES, produce_exchange
from bench.report import Report, print_table, write_json
from bench.rows import ROWS
from tidemill.wire.batch import read_header, verify
from tidemill.wire.generated.produce import ProduceRequest
from tidemill.wire.headers import parse_request_header
from tidemill.wire.primitives import Reader


def outcome(
    ours: list[float], theirs: list[float] | None = None, bar: Bar | None = None, unit: str = "MB/s"
) -> Outcome:
    return Outcome(
        row="row", title="produce 1 KB", unit=unit, ours=ours, theirs=theirs or (),
        against="kafka", bar=bar,
    )  # fmt: skip


def noting(name: str, order: list[str]) -> Callable[[], Sample]:
    def measure() -> Sample:
        order.append(name)
        return {"rate": float(len(order))}

    return measure


# --- order and ratios ----------------------------------------------------------------------------


def test_samples_are_taken_in_rounds_of_A_B_B_A():
    order: list[str] = []
    ours, theirs = alternate(2, noting("A", order), noting("B", order))
    assert "".join(order) == "ABBAABBA"
    assert column(ours, "rate") == (1, 4, 5, 8)
    assert column(theirs, "rate") == (2, 3, 6, 7)


def test_without_a_reference_as_many_samples_are_taken():
    order: list[str] = []
    ours, theirs = alternate(3, noting("A", order), None)
    assert (len(ours), theirs) == (6, [])


def test_steady_drift_within_a_round_cancels():
    # Every sample is 10 slower than the one before it: A=100, B=90, B=80, A=70.
    assert round_ratios([100, 70], [90, 80]) == [1.0]


def test_one_disturbed_round_does_not_move_the_ratio():
    assert ratio(outcome([20, 20, 3, 3, 20, 20], [10, 10, 10, 10, 10, 10])) == 2.0


def test_uneven_samples_are_compared_by_their_medians():
    assert round_ratios([4, 4, 100], [2]) == [2.0]


def test_a_reference_of_zero_gives_no_ratio():
    assert ratio(outcome([1.0], [0.0])) is None


# --- bars ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bar", "ours", "theirs", "verdict"),
    [
        (Bar(">=", 2), [200, 200], [100, 100], Verdict.MET),
        (Bar(">=", 2), [199, 199], [100, 100], Verdict.MISSED),
        (Bar("<=", 0.6), [6, 6], [10, 10], Verdict.MET),
        (Bar("<=", 0.6), [7, 7], [10, 10], Verdict.MISSED),
        (Bar("<=", 80, Held.VALUE), [79], [500], Verdict.MET),
        (Bar("<=", 80, Held.VALUE), [81], [500], Verdict.MISSED),
        (Bar("<=", 0.5, Held.DIFFERENCE), [1.5], [1.0], Verdict.MET),
        (Bar("<=", 0.5, Held.DIFFERENCE), [1.6], [1.0], Verdict.MISSED),
    ],
)
def test_a_bar_is_compared_with_ratio_value_or_difference(bar, ours, theirs, verdict):
    assert judge(outcome(ours, theirs, bar)) is verdict


def test_a_ratio_without_a_reference_is_not_judged():
    alone = outcome([100, 100], bar=Bar(">=", 2))
    assert (held_value(alone), judge(alone)) == (None, Verdict.OPEN)


def test_a_measure_without_a_bar_is_not_judged():
    assert judge(outcome([100], [50])) is Verdict.OPEN


def test_the_margin_is_how_many_times_better_than_the_bar_in_both_directions():
    assert margin(outcome([400], [100], Bar(">=", 2))) == 2
    assert margin(outcome([100], [100], Bar(">=", 2))) == 0.5
    assert margin(outcome([40], bar=Bar("<=", 80, Held.VALUE))) == 2


# --- histograms ----------------------------------------------------------------------------------

PAGE = """\
# TYPE stall_seconds histogram
stall_seconds_bucket{le="0.001"} 90
stall_seconds_bucket{le="0.016"} 98
stall_seconds_bucket{le="+Inf"} 100
stall_seconds_sum 0.5
stall_seconds_count 100
other_seconds_bucket{le="0.001"} 7
"""


def test_a_quantile_is_the_bound_of_the_bucket_that_reaches_it():
    buckets = parse_buckets(PAGE, "stall_seconds")
    assert histogram_quantile(buckets, 0.9) == 0.001
    assert histogram_quantile(buckets, 0.91) == 0.016
    assert histogram_quantile(buckets, 0.999) == float("inf")


def test_an_empty_histogram_has_no_quantile():
    assert histogram_quantile({0.001: 0, float("inf"): 0}, 0.5) is None


def test_histograms_are_subtracted_and_added_by_bucket():
    before, after = {0.1: 1.0, 1.0: 2.0}, {0.1: 4.0, 1.0: 7.0}
    during = buckets_between(before, after)
    assert during == {0.1: 3, 1.0: 5}
    assert buckets_sum(buckets_sum({}, before), during) == after


# --- what is printed and kept --------------------------------------------------------------------


def a_report() -> Report:
    report = Report(facts={"commit": "abc1234", "date": "2026-01-02T03:04:05Z"})
    report.outcomes += [
        outcome([150, 151], [100, 100], Bar(">=", 3)),
        outcome([0.25], bar=Bar("<=", 0.6, Held.VALUE), unit="s"),
    ]
    report.failures["backlog"] = "needs 21 GB of disk"
    return report


def test_the_table_marks_a_missed_bar():
    stream = io.StringIO()
    print_table(a_report(), stream)
    header, missed, met, *rest = stream.getvalue().splitlines()
    assert header.startswith("row ")
    assert missed.split()[-1] == "MISSED"
    assert "1.50x" in missed
    assert "≥ 3x" in missed
    assert met.split()[-1] == "met"
    assert "backlog: NOT MEASURED: needs 21 GB of disk" in rest
    assert "1 of 2 bars met, 1 missed" in rest


def test_the_file_keeps_every_sample_with_commit_and_date(tmp_path):
    path = tmp_path / "results" / "one.json"
    write_json(a_report(), path)
    kept = json.loads(path.read_text())
    assert (kept["commit"], kept["date"]) == ("abc1234", "2026-01-02T03:04:05Z")
    assert kept["outcomes"][0]["ours"] == [150, 151]
    assert kept["outcomes"][0]["verdict"] == "MISSED"
    assert kept["failures"] == {"backlog": "needs 21 GB of disk"}


# --- rows and the raw driver ---------------------------------------------------------------------


def test_every_row_has_its_own_key():
    keys = [row.key for row in ROWS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", sorted(BATCHES))
def test_a_prebuilt_request_holds_one_sound_batch(name):
    load = BATCHES[name]
    frame = produce_exchange("topic", 3, load).frame()[4:]
    header = parse_request_header(frame)
    request = ProduceRequest.read(Reader(frame[header.body_offset :]), header.api_version)
    partition = request.topic_data[0].partition_data[0]
    assert partition.index == 3
    assert partition.records is not None
    batch = memoryview(partition.records)
    batch_header = read_header(batch)
    verify(batch, batch_header)
    assert batch_header.record_count == load.records
