"""The arithmetic of the rows about transactions; nothing is started."""

from __future__ import annotations

import pytest

from bench.judgement import Bar, Verdict, judge
from bench.lab import PARTITIONS
from bench.rows import ROWS
from bench.transaction_rows import commits, per_transaction
from tests.bench.fake_lab import FakeLab

SAMPLE = {
    "failed": 0.0,
    "transactions_per_s": 300.0,
    "records_per_s": 300_000.0,
    "p99_us": 5_000.0,
    "n": 1_000.0,
    "cpu_s": 2.0,
}


def test_large_transactions_are_fewer():
    assert per_transaction(4_000, records=4) == 4_000
    assert per_transaction(4_000, records=1_000) == 1_000
    assert per_transaction(1, records=1_000) == 1


@pytest.mark.parametrize(
    ("records", "unit", "rate", "cpu"), [(1_000, "M rec/s", 0.3, 2.0), (4, "txn/s", 300.0, 2_000.0)]
)
def test_a_row_is_about_records_or_about_transactions(records, unit, rate, cpu):
    lab = FakeLab(
        tidemill=SAMPLE, kafka={**SAMPLE, "records_per_s": 1e5, "transactions_per_s": 1e2}
    )
    first, second = commits(lab, "key", "title", records=records, bar=Bar(">=", 1.5))
    assert (first.unit, set(first.ours), set(first.cpu_ours)) == (unit, {rate}, {cpu})
    assert judge(first) is Verdict.MET
    assert set(second.ours) == {5.0}
    (mode, _, asked, size, linger) = lab.asked[0]
    assert (mode, asked, size, linger) == ("transactions", records, 100, "linger.ms=0")


def test_without_kafka_there_is_nothing_to_compare_with():
    first, _ = commits(FakeLab(tidemill=SAMPLE), "key", "title", records=4, bar=Bar(">=", 1.5))
    assert judge(first) is Verdict.OPEN


def test_each_bar_about_transactions_has_a_row():
    keys = {row.key for row in ROWS}
    assert {"transactions-1000", "transactions-4", "spark-write-once"} <= keys
    assert PARTITIONS == 4
