"""The columns of the source, which are those of Spark's Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.core.errors import UserError
from tidemill.spark.options.source_options import COLUMNS, HEADERS_COLUMN, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["check_schema", "source_schema"]


_NULLABLE_COLUMNS = frozenset({"key", "value", HEADERS_COLUMN})


def source_schema(options: SourceOptions) -> StructType:
    """The columns that the options ask for; all are nullable, as in Spark's Kafka source."""
    from pyspark.sql.types import StructType

    every = _every_column()
    names = options.columns
    if names is None:
        names = (*COLUMNS, HEADERS_COLUMN) if options.include_headers else COLUMNS
    return StructType([every[name] for name in names])


def check_schema(schema: StructType) -> None:
    """A schema from the user may leave columns out; any other difference is a UserError.

    Spark believes NOT NULL and answers `count(value)` without a look at the values.
    """
    every = _every_column()
    for field in schema.fields:
        known = every[field.name] if field.name in every.fieldNames() else None
        if known is None:
            raise UserError(f"the source has no column {field.name}, only {every.fieldNames()}")
        if known.dataType != field.dataType:
            raise UserError(
                f"column {field.name} is {known.dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it in the query"
            )
        if not field.nullable and field.name in _NULLABLE_COLUMNS:
            raise UserError(
                f"column {field.name} must not be NOT NULL: records may be without (a tombstone "
                "has no value)"
            )


def _every_column() -> StructType:
    from pyspark.sql import types

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    return (
        types.StructType()
        .add("key", types.BinaryType())
        .add("value", types.BinaryType())
        .add("topic", types.StringType())
        .add("partition", types.IntegerType())
        .add("offset", types.LongType())
        .add("timestamp", types.TimestampType())
        .add("timestampType", types.IntegerType())
        .add(HEADERS_COLUMN, types.ArrayType(header))
    )
