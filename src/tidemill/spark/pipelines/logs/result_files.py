"""The Parquet files of the pipeline `logs`: events by date and hour, finished windows by date.

    events/date=2026-05-01/hour=07/batch=QUERY-NUMBER/...
    minutes/date=2026-05-01/batch=QUERY-NUMBER/...

A batch that is repeated after a crash replaces its folders. Folders of batches are merged later
(`FileMerging`); rows of a batch that are in a merged folder already are not written to it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from pyspark.sql import functions as F

from tidemill.core.clock import SystemClock
from tidemill.spark.pipelines.logs.utc_text import utc_date, utc_hour
from tidemill.spark.pipelines.merging.file_merging import FileMerging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.spark.pipelines.logs.settings import LogSettings
    from tidemill.spark.pipelines.merging.batch_folders import BatchFolder

__all__ = ["ResultFiles"]

_EVENTS: Final = "events"
_MINUTES: Final = "minutes"


@final
class ResultFiles:
    """The files of one output directory, for one run."""

    def __init__(self, settings: LogSettings) -> None:
        self._paths = {_EVENTS: settings.events_dir, _MINUTES: settings.minutes_dir}
        self._merging = FileMerging(
            settings.output_dir,
            {_EVENTS: True, _MINUTES: False},
            is_active=settings.output_merge,
            clock=SystemClock(),
        )

    def write_events(self, rows: DataFrame, batch: BatchFolder) -> None:
        dated = rows.withColumn("hour", utc_hour(F.col("time")))
        self._write(dated, _EVENTS, batch, "hour")

    def write_windows(self, rows: DataFrame, batch: BatchFolder) -> None:
        self._write(rows, _MINUTES, batch)

    def batch_written(self, batch: BatchFolder, watermark_ms: int) -> None:
        """All of `batch` is written, and folders that end at the watermark are closed."""
        self._merging.batch_written(batch, watermark_ms)

    def merge_step(self) -> bool:
        """One short step of merging; False if there is nothing to merge for now."""
        return self._merging.step()

    def _write(self, rows: DataFrame, tree: str, batch: BatchFolder, *by: str) -> None:
        """Into folders by date, `by` and batch."""
        dated = rows.withColumn("date", utc_date(F.col("time")))
        with self._merging.writing():
            merged = self._merging.merged_labels(tree, batch)
            if merged:
                dated = dated.where(~F.concat_ws("/", "date", *by).isin(merged))
            (
                dated.withColumn("batch", F.lit(batch.value))
                .write.mode("overwrite")
                .option("partitionOverwriteMode", "dynamic")
                .partitionBy("date", *by, "batch")
                .parquet(self._paths[tree])
            )
