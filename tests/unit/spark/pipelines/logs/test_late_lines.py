from __future__ import annotations

from tidemill.spark.pipelines.logs.late_lines import LateLines, watermark_of


def test_late_lines_add_up_and_a_repeated_batch_counts_once():
    late = LateLines()
    for batch_id, count in ((4, 10), (5, 7), (5, 7), (6, 0), (7, 1)):
        late.add(batch_id, count)

    assert late.total == 18


def test_the_watermark_is_read_from_the_log_of_offsets():
    logged = 'v1\n{"batchWatermarkMs":1700000042000,"batchTimestampMs":1}\n{"t":{"0":3}}'

    assert watermark_of(logged) == 1_700_000_042_000
