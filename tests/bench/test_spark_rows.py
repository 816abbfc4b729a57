"""The arithmetic of the Spark rows; no test here starts Spark or a broker."""

from __future__ import annotations

import json

import pytest

from bench.metrics_page import parse_sum
from bench.rows import ROWS
from bench.spark_job import commit_overheads_ms, latencies_ms
from bench.spark_rows import better

MIDNIGHT_MS = 1_767_225_600_000.0


def micro_batch(
    *,
    start: dict[str, int] | None,
    end: dict[str, int],
    trigger_ms: int = 100,
    commit_ms: int = 20,
    wal_ms: int = 10,
    rows: int = 3,
) -> dict[str, object]:
    """The progress of a batch that began at midnight."""
    return {
        "timestamp": "2026-01-01T00:00:00.000Z",
        "numInputRows": rows,
        "durationMs": {
            "triggerExecution": trigger_ms, "commitOffsets": commit_ms, "walCommit": wal_ms,
        },
        "sources": [
            {"startOffset": start and {"topic": start}, "endOffset": {"topic": end}},
        ],
    }  # fmt: skip


def test_a_latency_runs_from_the_newest_record_to_the_sinks_commit():
    batch = micro_batch(start={"0": 5, "1": 5}, end={"0": 7, "1": 6})
    times = {(0, 5): MIDNIGHT_MS - 30, (0, 6): MIDNIGHT_MS - 12, (1, 5): MIDNIGHT_MS - 7}
    assert latencies_ms([batch], times) == [pytest.approx(100 - 20 + 7)]


def test_a_partition_without_new_records_has_no_newest_record():
    batch = micro_batch(start={"0": 5, "1": 6}, end={"0": 7, "1": 6})
    times = {(0, 6): MIDNIGHT_MS - 12, (1, 5): MIDNIGHT_MS - 1}
    assert latencies_ms([batch], times) == [pytest.approx(100 - 20 + 12)]


def test_the_first_batch_of_a_query_has_no_start():
    batch = micro_batch(start=None, end={"0": 1})
    assert latencies_ms([batch], {(0, 0): MIDNIGHT_MS}) == [pytest.approx(80)]


def test_offsets_may_be_text_and_may_hold_an_entry_that_is_no_topic():
    batch = micro_batch(start=None, end={"0": 1})
    end = json.dumps({"_v": {"ids": "abc", "since": {"0": 9}}, "topic": {"0": 1}})
    batch["sources"] = [{"startOffset": None, "endOffset": end}]
    assert latencies_ms([batch], {(0, 0): MIDNIGHT_MS}) == [pytest.approx(80)]


def test_batches_without_rows_are_ignored():
    empty = micro_batch(start={"0": 5}, end={"0": 5}, rows=0)
    assert latencies_ms([empty], {}) == []
    assert commit_overheads_ms([empty]) == []


def test_the_overhead_is_what_spark_writes_before_and_after_a_batch():
    batch = micro_batch(start=None, end={"0": 1}, commit_ms=20, wal_ms=10)
    assert commit_overheads_ms([batch, batch]) == [30, 30]


def test_the_rival_is_the_one_with_the_highest_rate():
    assert better({"connector on kafka": 0.8e6, "connector on tidemill": 0.9e6}).endswith("mill")


def test_a_counter_is_summed_over_its_labels_and_not_over_its_neighbours():
    page = (
        "# TYPE requests_total counter\n"
        'requests_total{api="Fetch"} 40\n'
        'requests_total{api="Produce"} 2\n'
        'requests_total_more{api="Fetch"} 1000\n'
    )
    assert parse_sum(page, "requests_total") == 42
    assert parse_sum("up 1\n", "up") == 1


def test_no_row_of_spark_is_part_of_a_quick_run():
    rows = [row for row in ROWS if row.key.startswith("spark-")]
    assert len(rows) == 7
    assert not any(row.quick or row.large for row in rows)
