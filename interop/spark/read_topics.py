"""Prints the values of topics, read as a batch and as a stream by Spark's Kafka connector.

    read_topics.py BOOTSTRAP JARS TOPIC...

Run by an interpreter that has the connector's Spark, so it imports nothing of this project. The
last line is one JSON object; it fails if the two ways do not read the same.
"""

# ruff: noqa: T201 - it is a program

from __future__ import annotations

import json
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def main() -> None:
    bootstrap, jars, *topics = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.driver.extraClassPath", jars)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    options = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest"}
    found: dict[str, list[int]] = {}
    for topic in topics:
        chosen = {**options, "subscribe": topic}
        found[topic] = values(spark.read.format("kafka").options(**chosen).load())
        with tempfile.TemporaryDirectory() as checkpoint:
            stream = spark.readStream.format("kafka").options(**chosen).load()
            writer = stream.writeStream.format("memory").queryName("streamed")
            writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            writer.start().awaitTermination()
            streamed = values(spark.table("streamed"))
        assert streamed == found[topic], f"{topic}: {found[topic]} and {streamed}"
    spark.stop()
    print(json.dumps(found))


main()
