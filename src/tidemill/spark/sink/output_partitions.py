"""Rows brought to one task for each partition that they will be written to.

A row goes where the sink would put it: to the partition that it asks for, or where Java's default
partitioner puts its key (murmur2, computed on Arrow columns). A row without either goes by a hash
of its value that Spark has itself: only keys are sent to Python and back. The choice depends on
nothing but the row, so a repeated task makes the same.

Tasks get partitions in turn. By a hash of their numbers, which is Spark's usual way, one task may
get most of them, and a batch takes as long as its longest task.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from tidemill.core.errors import UserError
from tidemill.hot.columns.row_partitions import UNDECIDED, by_key
from tidemill.spark.bridge.column_batches import cells_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["by_output_partition", "key_hashes"]

_HASHES: Final = 2**31
"""Java's default partitioner drops the sign of the hash."""
_NO_TOPIC: Final = "a row has no topic: fill the column topic, or name one topic for all"


def by_output_partition(
    rows: DataFrame, partition_counts: Mapping[str, int], topic: str | None = None
) -> DataFrame:
    """The rows with a column `partition`, and all rows of a partition in one task.

    `topic` is where all rows go; None: each row names its topic. A frame whose rows come from one
    task in order keeps that order within a partition.
    """
    cells = _Cells(rows)
    topics = _Topics(partition_counts, None if topic else cells.named("topic"))
    hashed = F.pmod(_row_hash(cells), topics.partition_count())
    asked = cells.try_named("partition")
    chosen = hashed if asked is None else F.coalesce(asked.cast("int"), hashed)
    column = cells.names.get("partition", "partition")
    placed = rows.withColumn(column, chosen)
    cores = rows.sparkSession.sparkContext.defaultParallelism
    count = max(1, min(cores, sum(partition_counts.values())))
    return placed.repartitionById(count, topics.first_number() + F.col(f"`{column}`"))


@final
class _Cells:
    """The columns of a frame, whose names Spark compares without case."""

    def __init__(self, rows: DataFrame) -> None:
        self.names = {name.lower(): name for name in rows.columns}

    def try_named(self, name: str) -> Column | None:
        return F.col(f"`{self.names[name]}`") if name in self.names else None

    def named(self, name: str) -> Column:
        found = self.try_named(name)
        if found is None:
            raise UserError(f"the column {name} is missing")
        return found


@final
class _Topics:
    """What depends on the topic of a row: expressions over its column, or constants without one."""

    def __init__(self, partition_counts: Mapping[str, int], column: Column | None) -> None:
        self._counts = partition_counts
        self._column = column

    def partition_count(self) -> Column:
        return self._by_topic(self._counts)

    def first_number(self) -> Column:
        """Partitions are numbered through all topics: the number of a topic's first one."""
        first_numbers, total = {}, 0
        for name, count in self._counts.items():
            first_numbers[name] = total
            total += count
        return self._by_topic(first_numbers)

    def _by_topic(self, numbers: Mapping[str, int]) -> Column:
        if self._column is None:
            (number,) = numbers.values()
            return F.lit(number)
        found = F.when(self._column.isNull(), F.raise_error(F.lit(_NO_TOPIC)))
        for name, number in numbers.items():
            found = found.when(self._column == name, F.lit(number))
        known = F.lit(f", which is not among {', '.join(numbers)}")
        strange = F.concat(F.lit("a row names the topic "), self._column, known)
        return found.otherwise(F.raise_error(strange))


def _row_hash(cells: _Cells) -> Column:
    values = F.hash(cells.named("value"))
    keys = cells.try_named("key")
    if keys is None:
        return values
    of_key = arrow_udf(key_hashes, "int")  # type: ignore[call-overload]  # kind: by its hints
    return F.coalesce(of_key(keys.cast("binary")), values)


def key_hashes(keys: pa.Array) -> pa.Array:
    """The hash of each key, null for none: its remainder is the partition that Java chooses."""
    hashes = array("i", [UNDECIDED]) * len(keys)
    by_key(hashes, cells_of(keys), _HASHES)
    found = pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(hashes)])
    return pc.if_else(pc.is_valid(keys), found, None) if keys.null_count else found
