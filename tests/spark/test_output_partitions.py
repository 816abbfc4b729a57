"""Which task and which partition the rows of a write in one transaction go to, in real Spark."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemill.hot.murmur2 import partition_for
from tidemill.spark.sink.output_partitions import by_output_partition

COUNTS = {"a": 3, "b": 4}


def made(spark: SparkSession, *columns: str) -> DataFrame:
    return spark.range(0, 200, numPartitions=3).selectExpr("CAST(id AS STRING) AS value", *columns)


def test_a_row_goes_where_java_puts_its_key_or_where_it_asks_for(spark):
    rows = made(
        spark,
        "IF(id % 2 = 0, 'a', 'b') AS topic",
        "IF(id % 5 = 0, NULL, CAST(id AS STRING)) AS Key",
        "IF(id % 7 = 0, 1, NULL) AS partition",
    )
    for row in by_output_partition(rows, COUNTS).collect():
        if int(row["value"]) % 7 == 0:
            assert row["partition"] == 1
        elif row["Key"] is not None:
            assert row["partition"] == partition_for(row["Key"].encode(), COUNTS[row["topic"]])
        else:
            assert 0 <= row["partition"] < COUNTS[row["topic"]]


def test_every_partition_is_in_one_task_and_all_tasks_have_as_many(spark):
    rows = made(spark, "IF(id % 2 = 0, 'a', 'b') AS topic")
    placed = by_output_partition(rows, COUNTS).withColumn("task", F.spark_partition_id())
    tasks: dict[tuple[str, int], set[int]] = defaultdict(set)
    for row in placed.collect():
        tasks[row["topic"], row["partition"]].add(row["task"])
    assert len(tasks) == sum(COUNTS.values()), "rows without a key are spread over all partitions"
    assert all(len(found) == 1 for found in tasks.values())
    assert sorted(Counter(min(found) for found in tasks.values()).values()) == [3, 4]


def test_the_rows_of_one_topic_need_no_python(spark):
    placed = by_output_partition(made(spark), {"a": 4}, "a")
    plan = placed._jdf.queryExecution().executedPlan().toString()
    assert "Python" not in plan
    assert {row["partition"] for row in placed.collect()} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("topic", "sentence"),
    [("NULL", "a row has no topic"), ("'c'", "the topic c, which is not among a, b")],
)
def test_a_row_that_names_no_known_topic_is_refused(spark, topic, sentence):
    rows = made(spark, f"CAST({topic} AS STRING) AS topic")
    with pytest.raises(PySparkException, match=sentence):
        by_output_partition(rows, COUNTS).collect()
