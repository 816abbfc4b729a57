from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from tidemill.client.consuming.consumer import FetchedBatches
from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.spark.bridge.arrow_batches import ARROW_BATCH_BYTES, ArrowBatches
from tidemill.spark.options.source_options import parse_source_options
from tidemill.spark.source.schema import source_schema
from tidemill.wire.batch import read_header, stamp_append_time
from tidemill.wire.compression import CODEC_NAMES
from tidemill.wire.records import Record, build_batch

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "includeHeaders": "true"}


def schema_of(**options: str) -> pa.Schema:
    spark_schema = source_schema(parse_source_options({**BASE, **options}))
    return to_arrow_schema(spark_schema, timezone="UTC")


def fetched(*views: bytearray, from_offset: int = 0) -> FetchedBatches:
    batches = [(memoryview(view), read_header(memoryview(view))) for view in views]
    return FetchedBatches(TopicPartition("t", 3), batches, from_offset, 10**9, [])


def decode(
    answer: FetchedBatches, stop: int = 10**9, **options: str
) -> tuple[list[dict[str, object]], Sequence[pa.RecordBatch]]:
    batches = list(ArrowBatches(schema_of(**options)).decode(answer, stop))
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()], batches


@pytest.mark.parametrize("codec", sorted(CODEC_NAMES), ids=CODEC_NAMES.get)
def test_spark_rule_7_rows_are_the_records_under_every_codec(codec):
    records = [
        Record(b"value", b"key", headers=[("a", b"1"), ("b", None)], timestamp=1500),
        Record(None, None, timestamp=1501),
        Record(b"", b"", timestamp=1502),
    ]
    rows, _ = decode(fetched(build_batch(records, codec=codec, base_offset=40)))
    assert [(r["key"], r["value"], r["offset"]) for r in rows] == [
        (b"key", b"value", 40),
        (None, None, 41),
        (b"", b"", 42),
    ]
    assert rows[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert rows[1]["headers"] is None
    assert {(r["topic"], r["partition"], r["timestampType"]) for r in rows} == {("t", 3, 0)}
    assert [r["timestamp"].timestamp() for r in rows] == [1.5, 1.501, 1.502]


def test_gaps_that_compaction_left_stay_gaps():
    records = [Record(b"v", timestamp=1, offset=offset) for offset in (5, 9, 30)]
    rows, _ = decode(fetched(build_batch(records, base_offset=5)))
    assert [row["offset"] for row in rows] == [5, 9, 30]


def test_only_the_requested_offsets_are_returned():
    batches = [
        build_batch([Record(b"v", timestamp=1)] * 10, base_offset=base) for base in (0, 10, 20)
    ]
    rows, _ = decode(fetched(*batches, from_offset=8), stop=13)
    assert [row["offset"] for row in rows] == [8, 9, 10, 11, 12]


def test_spark_rule_7_arrow_batches_have_about_a_megabyte():
    batches = [
        build_batch([Record(bytes(100), timestamp=1)] * 5000, base_offset=base)
        for base in range(0, 40_000, 5000)
    ]
    rows, made = decode(fetched(*batches))
    assert [row["offset"] for row in rows] == list(range(40_000))
    assert len(made) == pytest.approx(40_000 * 116 / ARROW_BATCH_BYTES, abs=1)


def test_the_kind_of_timestamp_may_change_within_an_answer():
    plain = build_batch([Record(b"v", timestamp=1000)], base_offset=0)
    stamped = build_batch([Record(b"v", timestamp=1000)], base_offset=1)
    stamp_append_time(memoryview(stamped), 9000)
    rows, _ = decode(fetched(plain, stamped))
    assert [(r["timestampType"], r["timestamp"].timestamp()) for r in rows] == [(0, 1), (1, 9)]


def test_columns_come_in_the_order_they_were_asked_for():
    rows, _ = decode(
        fetched(build_batch([Record(b"v", b"k", timestamp=1)])), columns="offset,value"
    )
    assert [list(row.items()) for row in rows] == [[("offset", 0), ("value", b"v")]]


def test_a_damaged_batch_is_refused():
    view = build_batch([Record(b"value", timestamp=1)])
    view[-3] ^= 1
    with pytest.raises(KafkaError, match="checksum"):
        decode(fetched(view))


def test_small_answers_of_many_topics_keep_little_memory():
    batches = ArrowBatches(schema_of())
    before = pa.total_allocated_bytes()
    kept = []
    for index in range(200):
        answer = fetched(build_batch([Record(b"v")] * 3))
        answer.partition = TopicPartition(f"topic-{index}", index)
        kept += batches.decode(answer, 10**9)
    assert [batch["topic"][0].as_py() for batch in kept[:2]] == ["topic-0", "topic-1"]
    assert pa.total_allocated_bytes() - before < 200 * 1024


def test_a_column_with_one_value_grows_with_its_batches():
    batches = ArrowBatches(schema_of())
    for count in (3, 700, 5):
        (got,) = batches.decode(fetched(build_batch([Record(b"v")] * count)), 10**9)
        assert got["topic"].to_pylist() == ["t"] * count
        assert got["partition"].to_pylist() == [3] * count
