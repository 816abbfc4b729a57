"""The pipeline `logs`: two queries over one topic.

*events* parses every line. What was understood goes to Parquet by date and hour, the rest to the
dead-letter topic. *minutes* parses them as well and counts windows, which leave it once the
watermark has passed them: to Parquet, to a topic, and to the report.

Both hand their batches to Python (`foreachBatch`) for the two targets each has; Python sees frames,
not rows. A batch that is repeated after a crash has the same records, and overwrites its own files:
they lie in a folder named after query and batch. In the topics it appears twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, final

from tidemill.spark.pipelines.framework.pipeline import Job, Stage, Table, Topics
from tidemill.spark.pipelines.logs.settings import LogSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidemill.spark.pipelines.logs.minutes import Minute

__all__ = ["LogPipeline"]

_log = logging.getLogger(__name__)

_PATHS_TRACKED: Final = 10_000
"""Different paths per window up to which their counts are exact, or nearly so beyond it."""
_ACCURACY: Final = 1_000
"""Of percentiles: the rank is right within a thousandth."""
_STATUS_CLASSES: Final = (2, 3, 4, 5)


@final
class LogPipeline:
    """See above; `report` needs no Spark."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings

    def topics(self) -> Topics:
        settings = self._settings
        outputs = tuple(name for name in (settings.dead_topic, settings.minutes_topic) if name)
        return Topics((settings.input_topic,), outputs)

    def build(self, job: Job) -> Sequence[Stage]:
        return [self._events(job), self._minutes(job)]

    def table(self) -> Table | None:
        from tidemill.spark.pipelines.logs.minute_table import minute_table

        found = self._found()
        return minute_table(found) if found else None

    def report(self) -> str | None:
        from tidemill.spark.pipelines.logs.report_page import write_page

        settings = self._settings
        found = self._found()
        if not found:
            return None
        write_page(settings.report_path, found, title=f"Access log: {settings.input_topic}")
        return f"report of {len(found)} windows: {settings.report_path}"

    def _found(self) -> list[Minute]:
        from tidemill.spark.pipelines.logs.minutes import read_minutes

        settings = self._settings
        return read_minutes(settings.minutes_dir, settings.report_minutes, settings.window_s)

    # --- events ----------------------------------------------------------------------------------

    def _events(self, job: Job) -> Stage:
        from tidemill.spark.pipelines.framework.dead_letters import SOURCE_COLUMNS
        from tidemill.spark.pipelines.logs.line_parsing import parse_lines

        records = job.read(self._settings.input_topic, "events", columns=SOURCE_COLUMNS)
        parsed = parse_lines(records, self._settings)
        return Stage("events", parsed.writeStream.foreachBatch(self._events_writer(job)))

    def _events_writer(self, job: Job) -> Callable[[DataFrame, int], None]:
        from pyspark.sql import functions as F

        from tidemill.spark.pipelines.framework.dead_letters import dead_letters
        from tidemill.spark.pipelines.logs.line_parsing import EVENT_COLUMNS

        def write(parsed: DataFrame, batch_id: int) -> None:
            kept = parsed.persist()
            try:
                dead = kept.where(F.col("reason").isNotNull())
                events = kept.where(F.col("reason").isNull())
                where_from = ("topic", "partition", "offset")
                dated = events.select(*EVENT_COLUMNS, *where_from).withColumn(
                    "hour", F.date_format("time", "HH")
                )
                _write_parquet(dated, self._settings.events_dir, batch_id, by=("hour",))
                if not dead.isEmpty():
                    letters = dead_letters(dead, F.col("reason"), job.name)
                    job.write(letters, self._settings.dead_topic)
            finally:
                kept.unpersist()

        return write

    # --- minutes ---------------------------------------------------------------------------------

    def _minutes(self, job: Job) -> Stage:
        from pyspark.sql import functions as F

        from tidemill.spark.pipelines.logs.line_parsing import parse_lines

        settings = self._settings
        records = job.read(settings.input_topic, "minutes", columns="value,timestamp")
        events = parse_lines(records, settings).where(F.col("reason").isNull())
        windows = (
            events.withWatermark("time", f"{settings.window_late_s} seconds")
            .groupBy(F.window("time", f"{settings.window_s} seconds"))
            .agg(*_figures(settings))
            .select(F.col("window.start").alias("start"), F.col("window.end").alias("end"), "*")
            .drop("window")
        )
        writer = windows.writeStream.outputMode("append")
        return Stage("minutes", writer.foreachBatch(self._minutes_writer(job)))

    def _minutes_writer(self, job: Job) -> Callable[[DataFrame, int], None]:
        from pyspark.sql import functions as F

        def write(windows: DataFrame, batch_id: int) -> None:
            kept = windows.coalesce(1).sortWithinPartitions("start").persist()
            try:
                if kept.isEmpty():
                    return
                dated = kept.withColumnRenamed("start", "time")
                _write_parquet(dated, self._settings.minutes_dir, batch_id, by=())
                if self._settings.minutes_topic:
                    record = [
                        F.date_format("start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("key"),
                        F.to_json(F.struct("*")).alias("value"),
                        F.col("end").alias("timestamp"),
                    ]
                    job.write(kept.select(*record), self._settings.minutes_topic)
            finally:
                kept.unpersist()
            self._refresh_report()

        return write

    def _refresh_report(self) -> None:
        """The report is a convenience: a full disk under it must not stop the pipeline."""
        try:
            self.report()
        except OSError as error:
            _log.warning("the report was not written: %s", error)


def _figures(settings: LogSettings) -> list[Column]:
    from pyspark.sql import functions as F

    classes = [
        F.count_if(F.floor(F.col("status") / 100) == digit).alias(f"status_{digit}xx")
        for digit in _STATUS_CLASSES
    ]
    top = F.expr(f"approx_top_k(path, {settings.window_paths}, {_PATHS_TRACKED})")
    ranked = F.array_sort(
        top,
        lambda a, b: (
            F.when(a["count"] != b["count"], F.signum(b["count"] - a["count"]).cast("int"))
            .when(a["item"] < b["item"], -1)
            .when(a["item"] > b["item"], 1)
            .otherwise(0)
        ),
    )
    named = F.transform(
        ranked,
        lambda found: F.struct(found["item"].alias("path"), found["count"].alias("requests")),
    )
    return [
        F.count(F.lit(1)).alias("requests"),
        *classes,
        F.sum("bytes").alias("bytes"),
        F.percentile_approx("latency_ms", 0.5, _ACCURACY).alias("latency_p50_ms"),
        F.percentile_approx("latency_ms", 0.95, _ACCURACY).alias("latency_p95_ms"),
        F.percentile_approx("latency_ms", 0.99, _ACCURACY).alias("latency_p99_ms"),
        named.alias("top_paths"),
    ]


def _write_parquet(rows: DataFrame, path: str, batch_id: int, *, by: Sequence[str]) -> None:
    """Into folders by date, `by` and batch; those of the same batch are replaced."""
    from pyspark.sql import functions as F

    query_id = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "batch"
    (
        rows.withColumn("date", F.date_format("time", "yyyy-MM-dd"))
        .withColumn("batch", F.lit(f"{query_id[:8]}-{batch_id}"))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("date", *by, "batch")
        .parquet(path)
    )
