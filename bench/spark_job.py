"""The Spark side of a measurement, for either source: run by an interpreter that has pyspark.

    spark_job.py --format tidemill|kafka --scratch DIR [--class-path JARS]

Each request is a line of JSON on standard input and is answered with one line of JSON: so the JVM
and its compiled queries stay warm between samples. The process ends with its input. This file
imports nothing of the bench: the connector's Spark has its own Python environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["commit_overheads_ms", "latencies_ms"]

Progress = Mapping[str, Any]
"""Spark's report about one micro-batch."""
RecordTimes = Mapping[tuple[int, int], float]
"""(partition, offset) -> when the record was made, in milliseconds."""

MASTER = "local[2]"
WARM_UP_BATCHES = 10
"""The first micro-batches of a running query, which are not measured."""
BATCH_SECONDS_MAX = 120.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
"""Settings of both sides."""
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
CONNECTOR_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
)
"""The class that our session uses, under its name in the connector's version of Spark."""
_POLL_S = 0.05


# --- what progress means -------------------------------------------------------------------------


def latencies_ms(progress: Sequence[Progress], times: RecordTimes) -> list[float]:
    """From the newest record of each micro-batch to the end of the sink's commit.

    A batch commits its sink at the end of `addBatch`; only `commitOffsets` follows.
    """
    found = []
    for batch in _with_rows(progress):
        newest_ms = max(
            (times[position] for position in _last_records(batch) if position in times),
            default=None,
        )
        if newest_ms is not None:
            began_ms = datetime.fromisoformat(batch["timestamp"]).timestamp() * 1e3
            took = batch["durationMs"]
            found.append(began_ms + took["triggerExecution"] - took["commitOffsets"] - newest_ms)
    return found


def commit_overheads_ms(progress: Sequence[Progress]) -> list[float]:
    """The time of Spark's own bookkeeping in each micro-batch."""
    return [
        batch["durationMs"]["walCommit"] + batch["durationMs"]["commitOffsets"]
        for batch in _with_rows(progress)
    ]


def _with_rows(progress: Sequence[Progress]) -> list[Progress]:
    return [batch for batch in progress if batch["numInputRows"]]


def _last_records(batch: Progress) -> list[tuple[int, int]]:
    """The last record of each partition from which this batch read records."""
    source = batch["sources"][0]
    ends, starts = _offsets(source["endOffset"]), _offsets(source["startOffset"])
    return [(p, end - 1) for p, end in ends.items() if end > starts.get(p, 0)]


def _offsets(text: Mapping[str, Any] | str | None) -> dict[int, int]:
    """The offsets of the only topic; other entries have no partition numbers as keys."""
    topics = json.loads(text) if isinstance(text, str) else text or {}
    return {
        int(partition): offset
        for by_partition in topics.values()
        if isinstance(by_partition, dict)
        for partition, offset in by_partition.items()
        if partition.isdecimal()
    }


# --- queries -------------------------------------------------------------------------------------


@final
class Job:
    """Answers requests: each public method is an action, with the arguments of the request."""

    def __init__(self, spark: SparkSession, source: str, scratch: Path) -> None:
        self._spark = spark
        self._source = source
        self._scratch = scratch
        self._checkpoints = 0
        self._query: StreamingQuery | None = None
        self._own_manager = spark.conf.get(CHECKPOINTS, None)

    def read(self, address: str, topic: str) -> dict[str, float]:
        """Read the whole topic as one batch and aggregate it."""
        began = time.monotonic()
        frame = self._load(address, topic)
        row = frame.selectExpr(
            "count(1) AS rows", "sum(length(value)) AS bytes", "max(offset) AS newest"
        ).first()
        took_s = time.monotonic() - began
        assert row is not None
        return {"rows": row["rows"], "bytes": row["bytes"], "rows_per_s": row["rows"] / took_s}

    def stream(self, address: str, topic: str, batch_rows: int) -> dict[str, float]:
        """Read the whole topic in micro-batches of a bounded size; write nowhere."""
        began = time.monotonic()
        frame = self._load_stream(address, topic, maxOffsetsPerTrigger=str(batch_rows))
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", self._new_checkpoint())
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        took_s = time.monotonic() - began
        batches = _with_rows(_progress_of(query))
        rows = sum(batch["numInputRows"] for batch in batches)
        return {"rows": rows, "batches": len(batches), "rows_per_s": rows / took_s}

    def write(self, address: str, topic: str, rows: int, size: int) -> dict[str, float]:
        """Write rows that Spark generates by a cheap expression."""
        frame = self._generated(rows, size)
        began = time.monotonic()
        (
            frame.write.format(self._source)
            .option("kafka.bootstrap.servers", address)
            .option("topic", topic)
            .mode("append")
            .save()
        )
        took_s = time.monotonic() - began
        return {"rows": rows, "rows_per_s": rows / took_s}

    def write_once(self, address: str, topic: str, rows: int, size: int) -> dict[str, float]:
        """Write the same rows in one transaction, with the shuffle that this needs."""
        from tidemill.spark import write_topic

        frame = self._generated(rows, size)
        options = {"kafka.bootstrap.servers": address}
        began = time.monotonic()
        write_topic(frame, topic, transactional_id=topic, options=options)
        took_s = time.monotonic() - began
        return {"rows": rows, "rows_per_s": rows / took_s}

    def _generated(self, rows: int, size: int) -> DataFrame:
        return self._spark.range(rows).selectExpr(f"lpad(CAST(id AS STRING), {size}, '.') AS value")

    def start(
        self, address: str, topic: str, sink_topic: str | None, spark_checkpoints: bool
    ) -> dict[str, float]:
        """Start a continuous query, to a topic or to nowhere; answers when it is warm."""
        self._choose_checkpoints(sparks_own=spark_checkpoints)
        frame = self._load_stream(address, topic)
        writing = frame.select("value").writeStream
        if sink_topic is None:
            writing = writing.format("noop")
        else:
            writing = writing.format(self._source).option("topic", sink_topic)
            writing = writing.option("kafka.bootstrap.servers", address)
        self._query = writing.option("checkpointLocation", self._new_checkpoint()).start()
        self._wait_for_batches(1 if sink_topic is None else WARM_UP_BATCHES)
        return {}

    def stop(self, address: str, topic: str) -> dict[str, float]:
        """Stop the query; the times of its micro-batches, empty if it had no data."""
        assert self._query is not None, "nothing was started"
        progress = _progress_of(self._query)[WARM_UP_BATCHES:]
        self._query.stop()
        self._query = None
        latencies = latencies_ms(progress, self._record_times(address, topic))
        if not latencies:
            return {"batches": 0}
        return {
            "batches": len(latencies),
            "rows": sum(batch["numInputRows"] for batch in progress),
            "p50_ms": statistics.median(latencies),
            "overhead_ms": statistics.median(commit_overheads_ms(progress)),
        }

    def _load(self, address: str, topic: str) -> DataFrame:
        return (
            self._spark.read.format(self._source).options(**_source_options(address, topic)).load()
        )

    def _load_stream(self, address: str, topic: str, **options: str) -> DataFrame:
        given = {**_source_options(address, topic), "startingOffsets": "earliest", **options}
        return self._spark.readStream.format(self._source).options(**given).load()

    def _record_times(self, address: str, topic: str) -> RecordTimes:
        rows = self._load(address, topic).selectExpr(
            "partition", "offset", "CAST(timestamp AS DOUBLE) * 1000 AS made_ms"
        )
        return {(row["partition"], row["offset"]): row["made_ms"] for row in rows.collect()}

    def _new_checkpoint(self) -> str:
        self._checkpoints += 1
        return str(self._scratch / f"checkpoint-{self._checkpoints}")

    def _choose_checkpoints(self, *, sparks_own: bool) -> None:
        if sparks_own or self._own_manager is None:
            self._spark.conf.unset(CHECKPOINTS)
        else:
            self._spark.conf.set(CHECKPOINTS, self._own_manager)

    def _wait_for_batches(self, count: int) -> None:
        assert self._query is not None
        deadline = time.monotonic() + BATCH_SECONDS_MAX
        while len(_with_rows(_progress_of(self._query))) < count:
            failure = self._query.exception()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {count} micro-batches within {BATCH_SECONDS_MAX:.0f} s")
            time.sleep(_POLL_S)


def _source_options(address: str, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": address, "subscribe": topic}


def _progress_of(query: StreamingQuery) -> list[Progress]:
    return [json.loads(progress.json) for progress in query.recentProgress]


# --- the process ---------------------------------------------------------------------------------


def main() -> None:
    options = _parser().parse_args()
    # Standard output is only for answers: what a JVM prints goes to its log.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        settings = {**SETTINGS, "spark.local.dir": str(options.scratch)}
        settings["spark.sql.warehouse.dir"] = str(options.scratch / "warehouse")
        spark = _session(options.format, options.class_path, settings)
        try:
            _serve(Job(spark, options.format, options.scratch), answers.write, answers.flush)
        finally:
            spark.stop()


def _serve(job: Job, write: Callable[[str], object], flush: Callable[[], None]) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        action: Callable[..., dict[str, float]] = getattr(job, request.pop("action"))
        write(json.dumps(action(**request)) + "\n")
        flush()


def _session(source: str, class_path: str, settings: Mapping[str, str]) -> SparkSession:
    """Our session as documented; the other with Spark's defaults and the settings that it has."""
    if source == "tidemill":
        from tidemill.spark import session

        return session("bench", master=MASTER, settings=settings, quiet=True)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("bench").master(MASTER)
    builder = builder.config("spark.driver.extraClassPath", class_path)
    builder = builder.config(CHECKPOINTS, CONNECTOR_CHECKPOINTS)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Spark, for the bench.")
    parser.add_argument("--format", choices=("tidemill", "kafka"), required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--class-path", default="", help="jars of the connector")
    return parser


if __name__ == "__main__":
    main()
