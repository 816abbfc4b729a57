"""The streaming query of the pipeline `logs`: every line is read and parsed once.

    topic -> parse -> exchange -+-> lines ------------------------+-> union -> foreachBatch
                                +-> windows (watermark, state) ---+

`foreachBatch` has no event-time state, and a query has one output. So lines and finished windows
leave the query as one frame: each row has either a `line` or a `window`. The batch is cached, then
written: events and windows to Parquet, dead letters and windows to topics.

Both branches read one exchange, which Spark runs once as long as they want the same columns of it.
That is why a line is one struct, and why Spark may not prune the fields of structs here. If a later
Spark parses twice after all, results stay right and the query is slower; a test counts the input.

A batch that is repeated after a crash has the same records and replaces its own files
(`result_files`). In the topics its records appear twice, unless `delivery` is exactly_once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tidemill.spark.pipelines.framework.dead_letters import SOURCE_COLUMNS, dead_letters
from tidemill.spark.pipelines.framework.pipeline import Job, Stage
from tidemill.spark.pipelines.logs.late_lines import LateLines, is_late, watermark_before_ms
from tidemill.spark.pipelines.logs.line_parsing import EVENT_COLUMNS, parse_lines
from tidemill.spark.pipelines.logs.minutes import Minute, minute_from_row
from tidemill.spark.pipelines.logs.result_files import ResultFiles
from tidemill.spark.pipelines.logs.utc_text import utc_text
from tidemill.spark.pipelines.logs.window_figures import FIGURE_INPUTS, window_figures
from tidemill.spark.pipelines.merging.batch_folders import BatchFolder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidemill.spark.pipelines.logs.settings import LogSettings

__all__ = ["log_stage"]

_STAGE: Final = "events"
_ORIGIN_COLUMNS: Final = ("topic", "partition", "offset")
_PAYLOAD_COLUMNS: Final = ("key", "value", "headers")
"""Of a record; only dead letters need them behind the parser."""
_FIELD_PRUNING: Final = "spark.sql.optimizer.nestedSchemaPruning.enabled"


def log_stage(
    job: Job,
    settings: LogSettings,
    late_lines: LateLines,
    files: ResultFiles,
    on_windows: Callable[[Sequence[Minute]], None],
) -> Stage:
    """The query, not started. `on_windows` gets the newest windows that a batch has finished."""
    job.spark.conf.set(_FIELD_PRUNING, "false")
    lines = _lines(job, settings)
    windows = _windows(lines, settings)
    rows = lines.select("line", _null_like(windows, "window")).unionByName(
        windows.select(_null_like(lines, "line"), "window")
    )
    writer = rows.writeStream.outputMode("append")
    write = _batch_writer(job, settings, late_lines, files, on_windows)
    return Stage(
        _STAGE,
        writer.foreachBatch(write),
        late=lambda: late_lines.total,
        upkeep=files.merge_step,
    )


def _lines(job: Job, settings: LogSettings) -> DataFrame:
    """One column, `line`: what was parsed, where it came from, and the record if it is dead."""
    records = job.read(settings.input_topic, _STAGE, columns=SOURCE_COLUMNS)
    parsed = parse_lines(records, settings)
    is_dead = F.col("reason").isNotNull()
    fields = [
        F.when(is_dead, F.col(name)).alias(name) if name in _PAYLOAD_COLUMNS else F.col(name)
        for name in parsed.columns
    ]
    packed = parsed.select(F.struct(*fields).alias("line"))
    # As many partitions as cores: the number that shares the windows may be smaller.
    cores = job.spark.sparkContext.defaultParallelism
    return packed.repartition(cores, F.col("line.partition"), F.col("line.offset"))


def _windows(lines: DataFrame, settings: LogSettings) -> DataFrame:
    """One column, `window`: the start, end and figures of a window that is finished."""
    # A dead letter may have a time. Without it, the line is in no window and moves no watermark.
    time = F.when(F.col("line.reason").isNull(), F.col("line.time")).alias("time")
    return (
        lines.select(time, *(F.col(f"line.{name}") for name in FIGURE_INPUTS))
        .withWatermark("time", f"{settings.window_late_s} seconds")
        .groupBy(F.window("time", f"{settings.window_s} seconds").alias("span"))
        .agg(*window_figures(settings))
        .select(F.col("span.start").alias("start"), F.col("span.end").alias("end"), "*")
        .drop("span")
        .select(F.struct("*").alias("window"))
    )


def _null_like(frame: DataFrame, name: str) -> Column:
    return F.lit(None).cast(frame.schema[name].dataType).alias(name)


def _batch_writer(
    job: Job,
    settings: LogSettings,
    late_lines: LateLines,
    files: ResultFiles,
    on_windows: Callable[[Sequence[Minute]], None],
) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, batch_id: int) -> None:
        batch = BatchFolder.of_batch(_query_id(rows), batch_id)
        watermark_ms = watermark_before_ms(job.spark, job.checkpoint_of(_STAGE), batch_id)
        kept = rows.persist()
        try:
            lines = kept.where(F.col("line").isNotNull()).select("line.*")
            windows = kept.where(F.col("window").isNotNull()).select("window.*")
            _write_events(lines, files, batch)
            dead, late = _dead_and_late(lines, settings, watermark_ms)
            if dead:
                _write_dead_letters(lines, job, settings)
            finished = _write_windows(windows, job, settings, files, batch)
        finally:
            kept.unpersist()
        late_lines.add(batch_id, late)
        files.batch_written(batch, watermark_ms)
        if finished:
            on_windows(finished)

    return write


def _query_id(rows: DataFrame) -> str:
    return rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or "batch"


def _write_events(lines: DataFrame, files: ResultFiles, batch: BatchFolder) -> None:
    events = lines.where(F.col("reason").isNull()).select(*EVENT_COLUMNS, *_ORIGIN_COLUMNS)
    files.write_events(events, batch)


def _dead_and_late(lines: DataFrame, settings: LogSettings, watermark_ms: int) -> tuple[int, int]:
    """How many lines of the batch are dead letters, and how many came too late for a window."""
    is_dead = F.col("reason").isNotNull()
    late = ~is_dead & is_late(F.col("time"), settings.window_s, watermark_ms)
    [row] = lines.agg(F.count_if(is_dead), F.count_if(late)).collect()
    return row[0], row[1]


def _write_dead_letters(lines: DataFrame, job: Job, settings: LogSettings) -> None:
    bytes_max = job.record_bytes_max(settings.dead_topic)
    dead = lines.where(F.col("reason").isNotNull())
    letters = dead_letters(dead, F.col("reason"), job.name, bytes_max)
    job.write(letters, settings.dead_topic, _STAGE)


def _write_windows(
    windows: DataFrame, job: Job, settings: LogSettings, files: ResultFiles, batch: BatchFolder
) -> list[Minute]:
    """The newest of the windows that were written, as many as the report can show."""
    shown = windows.sort(F.desc("start")).limit(settings.report_windows_max).collect()
    if not shown:
        return []
    ordered = windows.coalesce(1).sortWithinPartitions("start")
    files.write_windows(ordered.withColumnRenamed("start", "time"), batch)
    if settings.minutes_topic:
        record = [
            utc_text(F.col("start")).alias("key"),
            F.to_json(F.struct("*")).alias("value"),
            F.col("end").alias("timestamp"),
        ]
        job.write(ordered.select(*record), settings.minutes_topic, _STAGE)
    return [minute_from_row(row.asDict(recursive=True)) for row in shown]
