"""The columns and types that a frame must have to be written.

Names and types are those of Spark's Kafka sink, plus `timestamp`, which that sink lacks. The other
columns of the source (`offset`, `timestampType`) are ignored, so that a topic can be copied as it
was read; any other column is an error.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from tidemill.core.errors import UserError

__all__ = ["IGNORED", "check_schema"]

IGNORED: Final = frozenset({"offset", "timestamptype"})


def check_schema(schema: StructType, topic: str | None) -> None:
    """UserError unless rows of `schema` can be written."""
    seen: set[str] = set()
    for field in schema.fields:
        name = field.name.lower()
        if name in seen:
            raise UserError(f"the column {name} appears twice")
        seen.add(name)
        if name not in IGNORED:
            _check_type(field.name, field.dataType)
    if "value" not in seen:
        raise UserError(
            "the column value is missing: what is written are the columns value, key, headers, "
            "topic, partition and timestamp"
        )
    if topic is None and "topic" not in seen:
        raise UserError("name the topic: by option topic, or by a column topic in every row")


def _check_type(name: str, found: DataType) -> None:
    wanted = _WANTED.get(name.lower())
    if wanted is None:
        raise UserError(
            f"the column {name} cannot be written: a record has value, key, headers, topic, "
            "partition and timestamp"
        )
    sentence, accepts = wanted
    if not accepts(found):
        raise UserError(f"the column {name} must be {sentence}, not {found.simpleString()}")


def _is_bytes(found: DataType) -> bool:
    return isinstance(found, BinaryType | StringType)


def _is_string(found: DataType) -> bool:
    return isinstance(found, StringType)


def _is_int(found: DataType) -> bool:
    return isinstance(found, IntegerType)


def _is_timestamp(found: DataType) -> bool:
    return isinstance(found, TimestampType)


def _is_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = found.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


_WANTED: Final = {
    "value": ("binary or string", _is_bytes),
    "key": ("binary or string", _is_bytes),
    "topic": ("string", _is_string),
    "partition": ("int", _is_int),
    "timestamp": ("timestamp", _is_timestamp),
    "headers": ("array<struct<key:string,value:binary>>", _is_headers),
}
