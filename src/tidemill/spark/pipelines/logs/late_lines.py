"""Counts the lines that came after their window had closed.

Spark reports what it drops behind the watermark, but counts partial rows: all lines that one task
has for one window are one row. So lines are compared with the watermark here. Spark drops by the
watermark of the batch before, which stands in the log of offsets of the query's checkpoint.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

__all__ = ["LateLines", "is_late", "watermark_before_ms", "watermark_of"]


@final
class LateLines:
    """How many there were in this run; a batch that is repeated counts once."""

    def __init__(self) -> None:
        self._earlier = 0
        self._batch_id = -1
        self._newest = 0

    @property
    def total(self) -> int:
        return self._earlier + self._newest

    def add(self, batch_id: int, count: int) -> None:
        if batch_id != self._batch_id:
            self._earlier = self.total
        self._batch_id, self._newest = batch_id, count


def is_late(time: Column, window_s: int, watermark_ms: int) -> Column:
    """Whether Spark drops a line of that time: its window ended at the watermark or before."""
    seconds = F.unix_seconds(time)
    end_s = seconds - F.pmod(seconds, F.lit(window_s)) + window_s
    return end_s * 1_000 <= watermark_ms


def watermark_before_ms(spark: SparkSession, checkpoint: str, batch_id: int) -> int:
    """The watermark by which Spark drops lines in a batch; 0 in the first one."""
    if batch_id == 0:
        return 0
    java = spark._jvm
    assert java is not None
    path = java.org.apache.hadoop.fs.Path(f"{checkpoint}/offsets/{batch_id - 1}")
    stream = path.getFileSystem(spark._jsc.hadoopConfiguration()).open(path)
    try:
        return watermark_of(java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def watermark_of(logged: str) -> int:
    """From an entry of the log of offsets: a version, the batch's facts as JSON, the offsets."""
    return int(json.loads(logged.splitlines()[1])["batchWatermarkMs"])
