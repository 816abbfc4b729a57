"""`spark.read.format("tidemill")` under real Spark, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tests.spark.queries import load, numbers_of, put
from tests.support.clients import Confluent, Message, Sending
from tests.support.topics import create_topic
from tidemill import Delay
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.net import AsyncioNet
from tidemill.wire.api_keys import ApiKey

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOON_MS = 1_700_000_000_000


@pytest.fixture
def bootstrap(running) -> str:
    return running.bootstrap


def test_F133_a_batch_holds_what_was_produced_with_every_codec(spark, bootstrap, topic):
    # Given records with and without key, value and headers, in batches of every codec
    create_topic(bootstrap, topic, 2)
    messages = [
        Message(b"value", b"key", (("h", b"1"), ("h", None), ("", b"")), NOON_MS, 0),
        Message(None, b"tombstone", (), NOON_MS + 1, 1),
        Message(b"", None, (("only", b"\xff\x00"),), NOON_MS + 2, 1),
        Message(b"x" * 200_000, b"", (), NOON_MS + 3, 0),
    ]
    expected = set()
    for codec in CODECS:
        places = Confluent().produce(bootstrap, topic, messages, Sending(codec=codec))
        expected |= {
            (m.key, m.value, topic, *place, m.timestamp_ms, 0, m.headers or None)
            for m, place in zip(messages, places, strict=True)
        }

    # When they are read
    rows = load(spark, bootstrap, topic, includeHeaders="true").collect()

    # Then all records are there, and no others
    found = [
        (
            *(row.key, row.value, row.topic, row.partition, row.offset),
            round(row.timestamp.replace(tzinfo=UTC).timestamp() * 1000),
            row.timestampType,
            row.headers and tuple((h.key, h.value) for h in row.headers),
        )
        for row in rows
    ]
    assert len(found) == len(expected)
    assert set(found) == expected


def test_F135_the_schema_is_that_of_the_kafka_source(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    columns = "key binary, value binary, topic string, partition int, offset bigint, "
    columns += "timestamp timestamp, timestampType int"
    headers = ", headers array<struct<key:string,value:binary>>"
    empty = spark.createDataFrame([], columns)
    assert load(spark, bootstrap, topic).schema == empty.schema
    with_headers = spark.createDataFrame([], columns + headers)
    assert load(spark, bootstrap, topic, includeHeaders="true").schema == with_headers.schema


def test_an_append_time_topic_shows_the_brokers_time_and_its_type(spark, bootstrap, topic):
    create_topic(bootstrap, topic, message_timestamp_type="LogAppendTime")
    Confluent().produce(bootstrap, topic, [Message(b"1", timestamp_ms=NOON_MS)])
    (row,) = load(spark, bootstrap, topic).collect()
    assert row.timestampType == 1
    assert row.timestamp.replace(tzinfo=UTC) > datetime.fromtimestamp(NOON_MS / 1000 + 1, UTC)


def test_places_of_all_kinds_bound_a_batch(spark, bootstrap, topic):
    # Given ten records, a second apart
    create_topic(bootstrap, topic)
    messages = [Message(b"%d" % i, timestamp_ms=NOON_MS + 1000 * i) for i in range(10)]
    Confluent().produce(bootstrap, topic, messages)

    def read(**options: str) -> list[int]:
        return numbers_of(load(spark, bootstrap, topic, **options).collect())

    def at(number: int) -> str:
        return json.dumps({topic: {"0": number}})

    assert read() == list(range(10))
    assert read(startingOffsets=at(3), endingOffsets=at(7)) == [3, 4, 5, 6]
    assert read(startingOffsets=at(-2), endingOffsets=at(-1)) == list(range(10))
    assert read(startingOffsets="-3") == [7, 8, 9]
    assert read(startingTimestamp=str(NOON_MS + 7500)) == [8, 9]
    assert read(startingOffsetsByTimestamp=at(NOON_MS + 8000)) == [8, 9]
    assert read(endingTimestamp=str(NOON_MS + 2000)) == [0, 1]
    assert read(endingOffsetsByTimestamp=at(NOON_MS + 1000)) == [0]
    assert read(startingTimestamp=str(NOON_MS), endingTimestamp="-1d") == list(range(10))


def test_a_relative_time_counts_back_from_now(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, [1, 2])
    Confluent().produce(bootstrap, topic, [Message(b"3", timestamp_ms=NOON_MS)])
    assert numbers_of(load(spark, bootstrap, topic, startingOffsets="-10m").collect()) == [1, 2, 3]
    assert numbers_of(load(spark, bootstrap, topic, endingTimestamp="-10m").collect()) == []


def test_a_time_without_records_is_an_error_or_the_end(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, [1])
    late = str(4_000_000_000_000)
    with pytest.raises(PySparkException, match="no record of that time"):
        load(spark, bootstrap, topic, startingTimestamp=late).collect()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert load(spark, bootstrap, topic, startingTimestamp=late, **strategy).collect() == []


def test_topics_are_found_by_pattern_and_partitions_by_assignment(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    create_topic(bootstrap, f"{topic}-b")
    put(bootstrap, topic, [0], partition=0)
    put(bootstrap, topic, [1], partition=1)
    put(bootstrap, f"{topic}-b", [2])
    pattern = load(spark, bootstrap, topic, subscribePattern=f"{topic}.*")
    assert numbers_of(pattern.collect()) == [0, 1, 2]
    exact = load(spark, bootstrap, topic, subscribePattern=topic)
    assert numbers_of(exact.collect()) == [0, 1]
    assigned = load(spark, bootstrap, topic, assign=json.dumps({topic: [1]}))
    assert numbers_of(assigned.collect()) == [1]


def test_a_missing_topic_is_named(spark, bootstrap, topic):
    with pytest.raises(PySparkException, match=f"there is no topic {topic}"):
        load(spark, bootstrap, topic).collect()


def test_spark_rule_11_a_mistyped_option_fails_at_load(spark, bootstrap, topic):
    with pytest.raises(PySparkException, match="unknown option startingoffset"):
        load(spark, bootstrap, topic, startingOffset="earliest")


def test_spark_rule_11_options_are_checked_although_the_user_gives_a_schema(
    spark, bootstrap, topic
):
    reader = spark.read.format("tidemill").schema("value binary").option("subscribe", topic)
    with pytest.raises(PySparkException, match=r"kafka\.bootstrap\.servers is missing"):
        reader.load().collect()


def test_spark_rule_7_a_schema_or_columns_prune_what_is_sent(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, [5])
    reader = spark.read.format("tidemill").schema("offset bigint, value binary")
    reader = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    assert [tuple(row) for row in reader.load().collect()] == [(0, b"5")]
    by_option = load(spark, bootstrap, topic, columns="value,partition")
    assert [row.asDict() for row in by_option.collect()] == [{"value": b"5", "partition": 0}]


def test_a_schema_that_is_not_the_sources_is_refused(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    reader = spark.read.format("tidemill").schema("value string")
    reader = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    with pytest.raises(PySparkException, match="column value is binary, not string"):
        reader.load().collect()


@pytest.fixture(params=["UTC", "Asia/Tokyo"])
def time_zone(spark, request) -> Iterator[str]:
    key = "spark.sql.session.timeZone"
    before = spark.conf.get(key)
    spark.conf.set(key, request.param)
    yield request.param
    spark.conf.set(key, before)


@pytest.mark.usefixtures("time_zone")
def test_spark_rule_8_pushdown_gives_what_sparks_own_filters_give(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    messages = [
        Message(b"%d" % i, timestamp_ms=NOON_MS + 1000 * i, partition=i % 2) for i in range(40)
    ]
    Confluent().produce(bootstrap, topic, messages)
    frames = [load(spark, bootstrap, topic, pushdown=flag) for flag in ("true", "false")]
    noon = datetime.fromtimestamp(NOON_MS / 1000, UTC)
    for wanted in (
        (f.col("offset") >= 3) & (f.col("offset") < 7),
        f.col("offset") == 5,
        (f.col("partition") == 1) & (f.col("offset") > 17),
        f.col("topic").isin("none", topic) & (f.col("offset") <= 1),
        f.col("timestamp") > f.lit(noon) + f.expr("interval 30 seconds"),
        f.col("value") == b"7",
    ):
        pushed, plain = (numbers_of(frame.where(wanted).collect()) for frame in frames)
        assert pushed == plain != []


def test_min_partitions_and_max_records_cut_tasks(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(100))

    def tasks(**options: str) -> int:
        frame = load(spark, bootstrap, topic, **options)
        assert numbers_of(frame.collect()) == list(range(100))
        return frame.select(f.spark_partition_id()).distinct().count()

    assert tasks() == 1
    assert tasks(minPartitions="4") == 4
    assert tasks(maxRecordsPerPartition="30") == 4


def test_retention_that_passed_the_start_fails_or_is_skipped(spark, bootstrap, topic, run):
    # Given ten records, the first six deleted
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(10))
    _delete_before(run, bootstrap, topic, 6)
    start = json.dumps({topic: {"0": 2}})

    # Then a query that begins among them fails with the reason, or continues without them
    with pytest.raises(PySparkException, match="begins at 6 now, offsets from 2 are gone"):
        load(spark, bootstrap, topic, startingOffsets=start).collect()
    lossy = load(spark, bootstrap, topic, startingOffsets=start, failOnDataLoss="false")
    assert numbers_of(lossy.collect()) == [6, 7, 8, 9]


def test_spark_rule_8_pushdown_does_not_fetch_what_a_filter_leaves_out(
    spark, bootstrap, topic, run
):
    # Given a query that begins among deleted records: fetching them would be an error
    create_topic(bootstrap, topic)
    messages = [Message(b"%d" % i, timestamp_ms=NOON_MS + 1000 * i) for i in range(10)]
    Confluent().produce(bootstrap, topic, messages)
    _delete_before(run, bootstrap, topic, 6)
    start = json.dumps({topic: {"0": 2}})
    frame = load(spark, bootstrap, topic, startingOffsets=start, pushdown="true")

    # Then a filter that leaves them out, by offset or by time, keeps them from being fetched
    assert numbers_of(frame.where("offset >= 7").collect()) == [7, 8, 9]
    at_8 = f.lit(datetime.fromtimestamp(NOON_MS / 1000 + 8, UTC))
    assert numbers_of(frame.where(f.col("timestamp") >= at_8).collect()) == [8, 9]


def test_a_table_of_sql_keeps_its_options_and_a_query_adds_to_them(spark, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(5))
    name = topic.replace("-", "_")
    spark.sql(
        f"CREATE TABLE {name} USING tidemill OPTIONS "
        f"(`kafka.bootstrap.servers` '{bootstrap}', subscribe '{topic}')"
    )
    assert numbers_of(spark.sql(f"SELECT value FROM {name}").collect()) == [0, 1, 2, 3, 4]
    late = spark.sql(f"SELECT value FROM {name} WITH (startingOffsets = '-2')")
    assert numbers_of(late.collect()) == [3, 4]
    spark.sql(f"DROP TABLE {name}")


def _delete_before(run, bootstrap: str, topic: str, offset: int) -> None:
    host, port = bootstrap.split(":")

    async def delete() -> None:
        async with ClusterClient(AsyncioNet(), [(host, int(port))]) as cluster:
            await Admin(cluster).delete_records(topic, {0: offset})

    run(delete())


def test_many_records_come_in_arrow_batches_of_a_megabyte(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    for partition in (0, 1):
        messages = [Message(b"%0500d" % i, partition=partition) for i in range(10_000)]
        Confluent().produce(bootstrap, topic, messages)
    frame = load(spark, bootstrap, topic)
    row = frame.select(f.count("value"), f.sum("offset"), f.sum(f.length("value"))).first()
    assert tuple(row) == (20_000, 2 * sum(range(10_000)), 20_000 * 500)


def test_spark_rule_6_workers_keep_their_connections(spark, running, bootstrap, topic):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(10))
    frame = load(spark, bootstrap, topic)
    for _ in range(3):
        frame.collect()
    before = _connections(running)
    for _ in range(5):
        frame.collect()
    assert _connections(running) - before <= 1


def _connections(running) -> int:
    """How many were made so far: each begins with ApiVersions."""
    counters = running.broker.telemetry.apis[ApiKey.API_VERSIONS]
    made: int = counters.requests
    return made


def test_a_view_is_read_like_a_topic(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    keys = {"tidemill_view_of": topic, "tidemill_view_filter": "number < 3 OR number = 77"}
    create_topic(bootstrap, f"{topic}.few", -1, **keys)
    messages = [
        Message(b"%d" % n, partition=n % 2, headers=(("number", b"%d" % n),)) for n in range(100)
    ]
    Confluent().produce(bootstrap, topic, messages)
    rows = load(spark, bootstrap, f"{topic}.few").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == [0, 1, 2, 77]
    assert {(row.partition, row.offset) for row in rows} == {(0, 0), (1, 0), (0, 1), (1, 38)}


def test_held_records_are_in_no_frame_until_they_are_delivered(spark, bootstrap, topic):
    create_topic(bootstrap, topic, 2)
    messages = [
        Message(b"%d" % n, partition=n % 2, headers=tuple(Delay("1h")) if n % 3 else ())
        for n in range(100)
    ]
    Confluent().produce(bootstrap, topic, messages)
    places = {
        int(bytes(row.value)): (row.partition, row.offset)
        for row in load(spark, bootstrap, topic).collect()
    }
    assert places == {n: (n % 2, n // 2) for n in range(0, 100, 3)}
    keys = {"tidemill_view_of": topic, "tidemill_view_held": "true"}
    create_topic(bootstrap, f"{topic}.held", -1, **keys)
    assert load(spark, bootstrap, f"{topic}.held").count() == 66
