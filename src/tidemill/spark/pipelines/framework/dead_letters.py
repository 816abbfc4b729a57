"""Dead letters: records that a pipeline cannot use, sent unchanged to a topic of their own.

Key and value stay as they were, so copying a dead letter to the input topic retries it. Headers say
in text why it failed and where it came from. A record that fails again counts one more attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["HEADER_PREFIX", "SOURCE_COLUMNS", "dead_letter_columns", "dead_letters"]

HEADER_PREFIX: Final = "tidemill.dead."
SOURCE_COLUMNS: Final = "key,value,topic,partition,offset,timestamp,headers"
"""The columns of the source that a dead letter needs."""


def dead_letters(rows: DataFrame, reason: Column, pipeline: str) -> DataFrame:
    """Rows with `SOURCE_COLUMNS` as records of the dead-letter topic."""
    return rows.select(*dead_letter_columns(reason, pipeline))


def dead_letter_columns(reason: Column, pipeline: str) -> list[Column]:
    """`key`, `value` and `headers` of a dead letter."""
    facts = {
        "reason": reason,
        "pipeline": F.lit(pipeline),
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "timestamp": F.unix_millis("timestamp"),
        "attempt": _attempt(),
    }
    ours = F.array(*(_header(name, value) for name, value in facts.items()))
    theirs = F.coalesce(
        F.filter("headers", lambda header: ~header["key"].startswith(HEADER_PREFIX)),
        F.array().cast("array<struct<key:string,value:binary>>"),
    )
    return [F.col("key"), F.col("value"), F.concat(theirs, ours).alias("headers")]


def _header(name: str, value: Column) -> Column:
    return F.struct(
        F.lit(HEADER_PREFIX + name).alias("key"),
        value.cast("string").cast("binary").alias("value"),
    )


def _attempt() -> Column:
    """One more than the attempts that the record's header counts."""
    earlier = F.filter("headers", lambda header: header["key"] == F.lit(f"{HEADER_PREFIX}attempt"))
    counted = F.get(earlier, F.lit(0))["value"].cast("string").try_cast("int")
    return F.coalesce(counted, F.lit(0)) + 1
