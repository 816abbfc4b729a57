"""The ranges of offsets that Spark sends from the driver to a task."""

from __future__ import annotations

from typing import final

from pyspark.sql.datasource import InputPartition

from tidemill.spark.source.planning import OffsetRange

__all__ = ["InputTask"]


@final
class InputTask(InputPartition):
    """The ranges that one task reads; empty for a batch without data."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges
