"""The sink under real Spark, against a real broker, read back by librdkafka."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.spark_topics import create_topic, records_of
from tests.support.topics import end_offset
from tidemill.testing.broker_process import BrokerProcess
from tidemill.testing.embedded import RunningBroker, broker
from tidemill.wire.compression import CODEC_NAMES

pytestmark = [pytest.mark.slow]

ALL_COLUMNS = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, "
    "partition int, timestamp timestamp"
)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(auto_create_topics_enable=False) as started:
        yield started


@pytest.fixture
def topic() -> str:
    return f"sink-{uuid4().hex[:8]}"


def save(rows: DataFrame, bootstrap: str, **options: str) -> None:
    writer = rows.write.format("tidemill").mode("append")
    writer = writer.option("kafka.bootstrap.servers", bootstrap)
    for name, text in options.items():
        writer = writer.option(name.replace("__", "."), text)
    writer.save()


def test_every_shape_of_row_is_read_back_as_it_was_written(spark, running, topic):
    create_topic(running.bootstrap, topic, 3)
    day = datetime(2024, 5, 17, 12, 30, 1, 234_000, UTC)
    rows = [
        (b"k", b"v", [("a", b"1"), ("b", None)], topic, 1, day),
        (None, b"keyless", None, topic, 1, day),
        (b"", b"", [], topic, 1, day),
        (b"tombstone", None, None, topic, 2, day),
        (b"big", b"x" * 300_000, None, topic, 2, day),
    ]
    save(spark.createDataFrame(rows, ALL_COLUMNS).coalesce(1), running.bootstrap)

    written = [
        (record.key, record.value, record.headers, record.partition, record.timestamp_ms)
        for record in records_of(running.bootstrap, topic, 3)
    ]
    expected_ms = int(day.timestamp() * 1000)
    assert written == [
        (key, value, tuple(headers or ()), partition, expected_ms)
        for key, value, headers, _, partition, _ in rows
    ]


def test_text_goes_by_key_to_where_a_kafka_producer_would_put_it(spark, running, topic):
    create_topic(running.bootstrap, topic, 5)
    rows = spark.range(0, 3_000, 1, 3).selectExpr("'k' || id % 97 key", "'v' || id value")
    save(rows, running.bootstrap, topic=topic)

    from tidemill.client.producing.partitioners import KeyPartitioner, RoundRobin

    partitioner = KeyPartitioner(RoundRobin())
    records = records_of(running.bootstrap, topic, 5)
    assert sorted((r.key, r.value) for r in records) == sorted(
        (b"k%d" % (n % 97), b"v%d" % n) for n in range(3_000)
    )
    assert all(r.partition == partitioner.partition(r.key, 5) for r in records)


@pytest.mark.parametrize("codec", CODEC_NAMES.values())
def test_every_codec_can_be_asked_for(spark, running, topic, codec):
    create_topic(running.bootstrap, topic)
    rows = spark.range(0, 2_000, 1, 1).selectExpr("cast(id as string) value")
    save(rows, running.bootstrap, topic=topic, kafka__compression__type=codec)
    values = [record.value for record in records_of(running.bootstrap, topic)]
    assert values == [b"%d" % number for number in range(2_000)]


def test_rows_name_their_topics_and_the_option_overrides_them(spark, running, topic):
    for name in (f"{topic}-0", f"{topic}-1", topic):
        create_topic(running.bootstrap, name)
    rows = spark.range(0, 10, 1, 1).selectExpr(
        "cast(id as string) value", f"'{topic}-' || id % 2 topic"
    )
    save(rows, running.bootstrap)
    save(rows, running.bootstrap, topic=topic)
    assert len(records_of(running.bootstrap, f"{topic}-0")) == 5
    assert len(records_of(running.bootstrap, f"{topic}-1")) == 5
    assert len(records_of(running.bootstrap, topic)) == 10


def test_a_frame_without_rows_is_written_as_nothing(spark, running, topic):
    create_topic(running.bootstrap, topic)
    save(spark.range(0).selectExpr("cast(id as string) value"), running.bootstrap, topic=topic)
    assert end_offset(running.bootstrap, topic) == 0


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("id value", {}, "the column value must be binary or string, not bigint"),
        ("'x' value, 1 colour", {}, "the column colour cannot be written"),
        ("'x' value", {"delivery": "exactly_once"}, "needs the option checkpointLocation"),
        ("'x' value", {"kafka__batch__sise": "1"}, "kafka.batch.sise is not known to the sink"),
    ],
)
def test_unsupported_rows_are_refused_before_a_task_runs(
    spark,
    running,
    columns,
    options,
    sentence,
):
    rows = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException) as refused:
        save(rows, running.bootstrap, topic="t", **options)
    assert sentence in str(refused.value)


def test_a_topic_cannot_be_overwritten(spark, running):
    writer = spark.range(1).selectExpr("'x' value").write.format("tidemill").mode("overwrite")
    with pytest.raises(PySparkException, match="use mode append"):
        writer.option("kafka.bootstrap.servers", running.bootstrap).option("topic", "t").save()


def test_a_wrong_topic_and_a_record_that_is_too_large_name_the_reason(spark, running, topic):
    with pytest.raises(PySparkException, match=f"cannot write to topic {topic}: UNKNOWN_TOPIC"):
        save(spark.range(1).selectExpr("'x' value"), running.bootstrap, topic=topic)

    create_topic(running.bootstrap, topic, max_message_bytes="1000")
    with pytest.raises(PySparkException) as refused:
        save(
            spark.range(1).selectExpr("repeat('x', 5000) value"),
            running.bootstrap,
            topic=topic,
            kafka__compression__type="none",
        )
    assert f"cannot write to topic {topic}, partition 0: MESSAGE_TOO_LARGE" in str(refused.value)
    assert "5070 bytes with one record" in str(refused.value)


def lines(folder: Path, number: int) -> list[bytes]:
    """Write a file of lines for the stream to find; returns them."""
    made = [f"{number}-{line}" for line in range(50)]
    (folder / f"{number}.txt").write_text("\n".join(made))
    return [line.encode() for line in made]


def run_stream(spark: SparkSession, folder: Path, bootstrap: str, **options: str) -> None:
    """Process the files that exist now, one per micro-batch, from where the last run ended."""
    rows = spark.readStream.option("maxFilesPerTrigger", "1").text(str(folder / "in"))
    writer = rows.writeStream.format("tidemill").trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    for name, text in options.items():
        writer = writer.option(name.replace("__", "."), text)
    query = writer.start()
    query.awaitTermination(100)
    assert not query.isActive


def test_a_restarted_stream_continues_where_it_ended(spark, running, topic, tmp_path):
    create_topic(running.bootstrap, topic)
    (tmp_path / "in").mkdir()
    written = [*lines(tmp_path / "in", 0), *lines(tmp_path / "in", 1)]
    run_stream(spark, tmp_path, running.bootstrap, topic=topic)
    written += lines(tmp_path / "in", 2)
    run_stream(spark, tmp_path, running.bootstrap, topic=topic)
    values = [record.value for record in records_of(running.bootstrap, topic)]
    assert sorted(values) == sorted(written)


def test_a_stream_whose_broker_is_away_fails_and_loses_nothing_when_it_is_back(
    spark, topic, tmp_path
):
    process = BrokerProcess(tmp_path / "data").start()
    try:
        create_topic(process.bootstrap, topic)
        (tmp_path / "in").mkdir()
        written = lines(tmp_path / "in", 0)
        run_stream(spark, tmp_path, process.bootstrap, topic=topic)
        process.kill()
        written += lines(tmp_path / "in", 1)
        with pytest.raises(StreamingQueryException, match="cannot"):
            run_stream(
                spark,
                tmp_path,
                process.bootstrap,
                topic=topic,
                kafka__delivery__timeout__ms="500",
            )
        process.start()
        run_stream(spark, tmp_path, process.bootstrap, topic=topic)
        values = [record.value for record in records_of(process.bootstrap, topic)]
    finally:
        process.stop()
    assert sorted(values) == sorted(written)


def test_a_broker_that_is_killed_and_comes_back_during_a_write_costs_nothing(
    spark, topic, tmp_path
):
    process = BrokerProcess(tmp_path / "data").start()
    count = 300_000
    stored_when_killed: list[int] = []

    def kill_in_the_middle() -> None:
        while (stored := end_offset(process.bootstrap, topic)) < count // 100:
            pass
        process.kill()
        stored_when_killed.append(stored)
        process.start()

    try:
        create_topic(process.bootstrap, topic)
        killing = threading.Thread(target=kill_in_the_middle)
        killing.start()
        rows = spark.range(0, count, 1, 4).selectExpr("cast(id as string) value")
        save(rows, process.bootstrap, topic=topic, kafka__batch__size="400")  # many requests
        killing.join()
        values = [record.value for record in records_of(process.bootstrap, topic)]
    finally:
        process.stop()
    assert stored_when_killed[0] < count
    # Each task wrote once: retries of stored batches add no records.
    assert sorted(values) == sorted(b"%d" % number for number in range(count))


def test_spark_itself_refuses_a_write_without_a_mode(spark, running, topic):
    """Documented in docs/internals/spark.md: a Python sink is not asked."""
    writer = spark.createDataFrame([("v",)], "value string").write.format("tidemill")
    writer = writer.option("kafka.bootstrap.servers", running.bootstrap).option("topic", topic)
    with pytest.raises(PySparkException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writer.save()
