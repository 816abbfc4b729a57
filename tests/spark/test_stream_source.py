"""`spark.readStream.format("tidemill")` under real Spark, against a real broker."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from tests.spark.queries import DEADLINE_S, Batches, drain, following, load_stream, put, start
from tests.support.clients import Confluent, Message
from tests.support.topics import create_topic
from tidemill.client.admin.group_admin import GroupAdmin, PartitionProgress
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.net import AsyncioNet

NOON_MS = 1_715_947_200_000
HOUR_MS = 3_600_000


@pytest.fixture
def bootstrap(running) -> str:
    return running.bootstrap


@pytest.fixture
def asking(run, bootstrap):
    """Runs something with a client of the broker."""

    def ask(work):
        host, port = bootstrap.split(":")

        async def session():
            async with ClusterClient(AsyncioNet(), [(host, int(port))]) as cluster:
                return await work(cluster)

        return run(session())

    return ask


def lag_of(asking, group: str) -> dict[int, tuple[int | None, int | None]]:
    """Committed offset and lag of each partition, as `tidemill group describe` shows them."""

    async def progress(cluster: ClusterClient) -> list[PartitionProgress]:
        return list(await GroupAdmin(cluster).progress(group))

    return {
        entry.partition.partition: (entry.committed and entry.committed.offset, entry.lag)
        for entry in asking(progress)
    }


def test_F133_available_now_delivers_everything_once_in_limited_batches(
    spark, bootstrap, topic, tmp_path
):
    create_topic(bootstrap, topic, 2)
    put(bootstrap, topic, range(600), partition=0, codec="lz4")
    put(bootstrap, topic, range(600, 900), partition=1, codec="zstd")
    stream = load_stream(
        spark, bootstrap, topic, startingOffsets="earliest", maxOffsetsPerTrigger="300"
    )
    batches = drain(stream, tmp_path)
    assert [len(batch) for batch in batches] == [300, 300, 300]
    assert sorted(number for batch in batches for number in batch) == list(range(900))
    # A second run finds nothing but what is new.
    put(bootstrap, topic, [900])
    assert drain(stream, tmp_path) == [[900]]


def test_windows_of_a_backlog_have_every_row_though_partitions_are_an_hour_apart(
    spark, bootstrap, topic, tmp_path
):
    create_topic(bootstrap, topic, 2)
    for partition in (0, 1):
        times = [NOON_MS + partition * HOUR_MS + second * 1000 for second in range(0, 3600, 30)]
        messages = [Message(b"1", partition=partition, timestamp_ms=time) for time in times]
        Confluent().produce(bootstrap, topic, messages)
    options = {"maxOffsetsPerTrigger": "80", "alignTimestamps": "true"}
    stream = load_stream(spark, bootstrap, topic, startingOffsets="earliest", **options)
    windows = stream.withWatermark("timestamp", "1 minute").groupBy(f.window("timestamp", "1 hour"))
    writer = windows.count().writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(int(DEADLINE_S))
    assert [batch["numInputRows"] for batch in query.recentProgress][:3] == [80, 80, 80]
    operators = [each for batch in query.recentProgress for each in batch["stateOperators"]]
    assert [each["numRowsDroppedByWatermark"] for each in operators] == [0] * len(operators)


def test_spark_rule_4_lag_is_visible_after_the_last_batch_of_available_now(
    spark, bootstrap, topic, tmp_path, asking
):
    create_topic(bootstrap, topic, 2)
    put(bootstrap, topic, range(10), partition=0)
    put(bootstrap, topic, range(10, 16), partition=1)
    group = f"g-{topic}"
    stream = load_stream(spark, bootstrap, topic, startingOffsets="earliest", kafka_group_id=group)
    drain(stream, tmp_path)
    assert lag_of(asking, group) == {0: (10, 0), 1: (6, 0)}
    put(bootstrap, topic, range(3))
    assert lag_of(asking, group) == {0: (10, 3), 1: (6, 0)}


def test_spark_rule_4_a_query_without_a_name_has_a_group_of_its_own(
    spark, bootstrap, topic, tmp_path, asking
):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(10))
    prefix = f"p-{topic}"
    stream = load_stream(spark, bootstrap, topic, startingOffsets="earliest", groupIdPrefix=prefix)
    drain(stream, tmp_path)
    drain(stream, tmp_path)  # a restart continues with the same group

    async def groups(cluster: ClusterClient) -> list[str]:
        return [group.group_id for group in await GroupAdmin(cluster).list_groups()]

    (own,) = [group for group in asking(groups) if group.startswith(prefix)]
    assert lag_of(asking, own) == {0: (10, 0)}


def test_spark_rule_4_a_query_may_keep_its_progress_to_itself(
    spark, bootstrap, topic, tmp_path, asking
):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(10))
    options = {"startingOffsets": "earliest", "commitOffsets": "false"}
    stream = load_stream(spark, bootstrap, topic, kafka_group_id=f"g-{topic}", **options)
    drain(stream, tmp_path)
    assert lag_of(asking, f"g-{topic}") == {}


def test_spark_rule_1_a_query_at_latest_that_dies_in_its_first_batch_misses_nothing(
    spark, bootstrap, topic, tmp_path
):
    # Given a query at latest, of which the first batch with data fails
    create_topic(bootstrap, topic)
    put(bootstrap, topic, [-1])
    stream = load_stream(spark, bootstrap, topic)
    dying = Batches()

    def fail(batch_id: int) -> None:
        raise RuntimeError(f"batch {batch_id} dies")

    dying.before = fail
    query = start(stream, dying, tmp_path)
    with pytest.raises(StreamingQueryException, match="batch 0 dies"):
        query.awaitTermination()

    # When records come while it is down, and it is started again
    put(bootstrap, topic, range(5))
    with following(stream, tmp_path) as (again, batches):
        batches.wait_for(lambda got: len(got) >= 5, again)
        put(bootstrap, topic, range(5, 8))
        got = batches.wait_for(lambda got: len(got) >= 8, again)

    # Then nothing between its first start and now is missing
    assert got == list(range(8))


def test_partitions_added_while_a_query_runs_are_read(
    spark, bootstrap, topic, tmp_path, add_partitions
):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(3))
    stream = load_stream(spark, bootstrap, topic, startingOffsets="earliest")
    with following(stream, tmp_path) as (query, batches):
        batches.wait_for(lambda got: len(got) == 3, query)
        add_partitions(bootstrap, topic, 2)
        put(bootstrap, topic, range(3, 9), partition=1)
        got = batches.wait_for(lambda got: len(got) >= 9, query)
    assert got == list(range(9))


def test_a_recreated_topic_stops_a_query_or_is_read_from_its_start(
    spark, bootstrap, topic, tmp_path, recreate
):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(20))
    options = {"startingOffsets": "earliest"}
    assert drain(load_stream(spark, bootstrap, topic, **options), tmp_path) == [list(range(20))]
    recreate(bootstrap, topic)
    put(bootstrap, topic, range(100, 103))
    with pytest.raises(StreamingQueryException, match="was deleted and created again"):
        drain(load_stream(spark, bootstrap, topic, **options), tmp_path)
    lossy = load_stream(spark, bootstrap, topic, failOnDataLoss="false", **options)
    assert drain(lossy, tmp_path) == [[100, 101, 102]]


def test_retention_that_overtakes_a_query_stops_it_or_is_skipped(
    spark, bootstrap, topic, tmp_path, asking
):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(10))
    options = {"startingOffsets": "earliest"}
    assert drain(load_stream(spark, bootstrap, topic, **options), tmp_path) == [list(range(10))]
    put(bootstrap, topic, range(10, 30))
    asking(lambda cluster: Admin(cluster).delete_records(topic, {0: 25}))
    with pytest.raises(StreamingQueryException, match="begins at 25 now, offsets from 10"):
        drain(load_stream(spark, bootstrap, topic, **options), tmp_path)
    lossy = load_stream(spark, bootstrap, topic, failOnDataLoss="false", **options)
    assert drain(lossy, tmp_path) == [[25, 26, 27, 28, 29]]


def test_a_query_outlives_the_death_of_the_broker(spark, topic, tmp_path, new_broker):
    broker = new_broker()
    create_topic(broker.bootstrap, topic, 2)
    put(broker.bootstrap, topic, range(50), partition=0)
    stream = load_stream(spark, broker.bootstrap, topic, startingOffsets="earliest")
    with following(stream, tmp_path / "checkpoint") as (query, batches):
        batches.wait_for(lambda got: len(got) >= 50, query)
        broker.kill()
        broker.start()
        put(broker.bootstrap, topic, range(50, 90), partition=1)
        got = batches.wait_for(lambda got: len(set(got)) >= 90, query)
    assert sorted(set(got)) == list(range(90))


def test_progress_shows_where_the_topic_ends(spark, bootstrap, topic, tmp_path):
    create_topic(bootstrap, topic)
    put(bootstrap, topic, range(10))
    stream = load_stream(spark, bootstrap, topic, startingOffsets="earliest")
    batches = Batches()
    query = start(stream, batches, tmp_path, available_now=True)
    query.awaitTermination()
    (source,) = json.loads(query.lastProgress.json)["sources"]
    assert source["latestOffset"] == {topic: {"0": 10}}
    assert source["endOffset"][topic] == {"0": 10}
