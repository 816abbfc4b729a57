"""Rows brought to one task for each partition that they will be written to.

A row goes where the sink would put it: to the partition that it asks for, or where Java's default
partitioner puts its key (murmur2, computed on Arrow columns). A row without either goes by its
value. The choice depends on nothing but the row, so a repeated task makes the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from tidemill.core.errors import UserError
from tidemill.hot.row_partitions import UNDECIDED, by_key
from tidemill.spark.bridge.column_batches import cells_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["by_output_partition", "partitions_of"]


def by_output_partition(
    rows: DataFrame, partition_counts: Mapping[str, int], topic: str | None = None
) -> DataFrame:
    """The rows with a column `partition`, and all rows of a partition in one task.

    `topic` is where all rows go; None: each row names its topic. A frame whose rows come from one
    task in order keeps that order within a partition.
    """
    choose = arrow_udf(_chooser(dict(partition_counts)), "int")  # type: ignore[call-overload]  # kind: by its hints
    names = {name.lower(): name for name in rows.columns}

    def column(name: str, kind: str) -> Column:
        found = F.col(f"`{names[name]}`") if name in names else F.lit(None)
        return found.cast(kind)

    where = F.lit(topic) if topic is not None else column("topic", "string")
    chosen = choose(
        where, column("partition", "int"), column("key", "binary"), column("value", "binary")
    )
    placed = rows.withColumn(names.get("partition", "partition"), chosen)
    cores = rows.sparkSession.sparkContext.defaultParallelism
    count = max(1, min(cores, sum(partition_counts.values())))
    by = [F.col("partition")] if topic is not None else [F.col("topic"), F.col("partition")]
    return placed.repartition(count, *by)


def _chooser(
    partition_counts: dict[str, int],
) -> Callable[[pa.Array, pa.Array, pa.Array, pa.Array], pa.Array]:
    """The function that workers run on the columns of many rows."""

    def choose(topics: pa.Array, asked: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
        names = pc.unique(topics).to_pylist()
        if len(names) == 1:
            return partitions_of(_count(partition_counts, names[0]), asked, keys, values)
        chosen: list[int | None] = [None] * len(topics)
        for name in names:
            at = pc.indices_nonzero(pc.equal(topics, name))
            part = partitions_of(
                _count(partition_counts, name), asked.take(at), keys.take(at), values.take(at)
            )
            for row, partition in zip(at.to_pylist(), part.to_pylist(), strict=True):
                chosen[row] = partition
        return pa.array(chosen, pa.int32())

    return choose


def partitions_of(count: int, asked: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
    """The partition of each row, out of `count`."""
    chosen = array("i", asked.fill_null(UNDECIDED).to_pylist())
    for column in (keys, values):
        if column.null_count < len(column):
            by_key(chosen, cells_of(column), count)
    return pa.array([max(partition, 0) for partition in chosen], pa.int32())


def _count(partition_counts: dict[str, int], topic: str | None) -> int:
    if topic is None:
        raise UserError("a row has no topic: fill the column topic, or name one topic for all")
    if topic not in partition_counts:
        raise UserError(
            f"a row names the topic {topic}, which is not among {', '.join(partition_counts)}"
        )
    return partition_counts[topic]
