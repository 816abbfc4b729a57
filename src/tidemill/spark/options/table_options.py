"""Options of a table that SQL has made: `CREATE TABLE name USING tidemill OPTIONS (...)`.

Spark calls the source with the properties of the table among its options when the table is created,
and asks for the schema. When the table is read, Spark 4.3 gives the source the schema, and of the
options only those of `SELECT ... WITH (...)`. So the schema of a table carries its options, in the
metadata of its first column, and options of a query come on top.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["is_table", "own_options", "with_stored_options", "with_table_options"]

_TABLE_PROPERTIES: Final = frozenset(
    {"provider", "owner", "comment", "collation", "location", "path", "external"}
    | {"is_managed_location", "table_type", "serialization.format"}
)
"""What Spark adds to the options of a table."""
_COPY_PREFIX: Final = "option."
"""Spark repeats each option of a table with this prefix."""
_METADATA_KEY: Final = "tidemill.options"
_ALTERNATIVES: Final = (
    frozenset({"subscribe", "subscribepattern", "assign"}),
    frozenset({"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}),
    frozenset({"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"}),
)
"""Options of which a query has one: that of the query replaces that of the table."""
_SECRET_PREFIXES: Final = ("kafka.sasl.", "kafka.ssl.")
"""Not stored: the metadata of a column travels into tables that are made from this one."""


def is_table(options: Mapping[str, str]) -> bool:
    """Whether Spark asks for a table that is being created."""
    return "provider" in {name.lower() for name in options}


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """What the user has given, by lower-case names."""
    given = {name.lower(): value for name, value in options.items()}
    if not is_table(given):
        return given
    return {
        name: value
        for name, value in given.items()
        if name not in _TABLE_PROPERTIES and not name.startswith(_COPY_PREFIX)
    }


def with_stored_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a table, for its catalog."""
    from pyspark.sql.types import StructField, StructType

    first, *rest = schema.fields
    stored = {
        name: value
        for name, value in sorted(options.items())
        if not name.lower().startswith(_SECRET_PREFIXES)
    }
    kept = StructField(
        first.name, first.dataType, first.nullable, {_METADATA_KEY: json.dumps(stored)}
    )
    return StructType([kept, *rest])


def with_table_options(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a query on top of those of the table that the schema comes from, if any."""
    replaced = {
        name
        for alternatives in _ALTERNATIVES
        if alternatives & given.keys()
        for name in alternatives
    }
    stored = {n: value for n, value in _stored_options(schema).items() if n not in replaced}
    return stored | dict(given)


def _stored_options(schema: StructType) -> dict[str, str]:
    for field in schema.fields:
        text = (field.metadata or {}).get(_METADATA_KEY)
        if text is not None:
            return {str(name): str(value) for name, value in json.loads(text).items()}
    return {}
