"""Spark reads from and writes to three brokers, and goes on while their leaders are killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from tests.spark.queries import load_stream, put
from tests.support.clients import DEADLINE_S
from tests.support.spark_topics import values_of
from tidemill.spark import stream_to_topic
from tidemill.testing.cluster_process import ClusterProcess

pytestmark = pytest.mark.e2e

PARTITIONS = 3
RECORDS = 540
BATCH_RECORDS = 90
QUERY_S = 300.0


@pytest.fixture
def cluster(tmp_path) -> Iterator[ClusterProcess]:
    """Three brokers with a topic to read and one to write; each leads a partition of both."""
    started = ClusterProcess(tmp_path / "data").start()
    try:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        topics = [NewTopic(name, PARTITIONS, 3) for name in ("in", "out")]
        for made in admin.create_topics(topics).values():
            made.result(DEADLINE_S)
        for partition in range(PARTITIONS):
            numbers = range(partition, RECORDS, PARTITIONS)
            put(started.bootstrap, "in", numbers, partition=partition)
        yield started
    finally:
        started.stop()


def plain(rows: DataFrame, bootstrap: str) -> DataStreamWriter:
    writer = rows.writeStream.format("tidemill").option("topic", "out")
    return writer.option("kafka.bootstrap.servers", bootstrap)


def exactly_once(rows: DataFrame, bootstrap: str) -> DataStreamWriter:
    return stream_to_topic(rows, "out", options={"kafka.bootstrap.servers": bootstrap})


def copy_while_leaders_die(
    spark, cluster: ClusterProcess, tmp_path, sink: Callable[[DataFrame, str], DataStreamWriter]
) -> list[int]:
    """Kill each broker in turn, the next when the last one is back; what the copy holds."""
    rows = load_stream(
        spark,
        cluster.bootstrap,
        "in",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(BATCH_RECORDS),
    ).select("key", "value")
    writer = sink(rows, cluster.bootstrap)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    killed: list[int] = []

    def kill_each() -> None:
        for broker_id in range(PARTITIONS):
            cluster.kill_broker(broker_id)
            killed.append(broker_id)
            cluster.wait_log(rf"broker {broker_id} is ready again")

    query = writer.trigger(processingTime="100 milliseconds").start()
    killing = threading.Thread(target=kill_each)
    killing.start()
    try:
        killing.join()
        query.processAllAvailable()
        assert query.exception() is None
    finally:
        query.stop()
    assert killed == list(range(PARTITIONS))
    return sorted(map(int, values_of(cluster.bootstrap, "out", "read_committed")))


@pytest.mark.timeout(QUERY_S)
def test_F133_a_stream_loses_nothing_when_the_leaders_of_both_topics_die(spark, cluster, tmp_path):
    copied = copy_while_leaders_die(spark, cluster, tmp_path, plain)
    assert set(copied) == set(range(RECORDS))


@pytest.mark.timeout(QUERY_S)
def test_F73_a_stream_copies_exactly_once_when_the_leaders_of_both_topics_die(
    spark, cluster, tmp_path
):
    copied = copy_while_leaders_die(spark, cluster, tmp_path, exactly_once)
    assert copied == list(range(RECORDS))
