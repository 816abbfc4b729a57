"""Dead letters: records that a pipeline cannot use, sent unchanged to a topic of their own.

Key and value stay as they were, so copying a dead letter to the input topic retries it. Headers say
in text why it failed and where it came from. A record that fails again counts one more attempt.

A letter is larger than its record, and its topic may take less than the input topic does. A letter
that would be too large has only the beginning of the value and none of the record's headers. The
header `cut` then has the size of the value; the whole record is where the other headers say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tidemill.core.errors import UserError
from tidemill.core.limits import KIB

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "HEADER_PREFIX",
    "SOURCE_COLUMNS",
    "dead_letter_columns",
    "dead_letters",
    "payload_bytes",
    "room_bytes",
]

HEADER_PREFIX: Final = "tidemill.dead."
SOURCE_COLUMNS: Final = "key,value,topic,partition,offset,timestamp,headers"
"""The columns of the source that a dead letter needs."""
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_HEADER_OVERHEAD_BYTES: Final = 10
_CUT_VALUE_BYTES: Final = 64 * KIB
_OURS_BYTES: Final = 2 * KIB
"""More than our headers and the frame of a batch take."""
_TOPIC_BYTES_MIN: Final = 8 * KIB


def dead_letters(rows: DataFrame, reason: Column, pipeline: str, bytes_max: int) -> DataFrame:
    """Rows with `SOURCE_COLUMNS` as records of a topic that takes batches of `bytes_max`."""
    return rows.select(*dead_letter_columns(reason, pipeline, bytes_max))


def dead_letter_columns(reason: Column, pipeline: str, bytes_max: int) -> list[Column]:
    """`key`, `value` and `headers` of a dead letter. UserError if its topic takes next to none."""
    if bytes_max < _TOPIC_BYTES_MIN:
        raise UserError(
            f"max.message.bytes={bytes_max} of the dead-letter topic is too small: letters need "
            f"at least {_TOPIC_BYTES_MIN}"
        )
    fits = payload_bytes() <= room_bytes(bytes_max)
    cut_bytes = min(_CUT_VALUE_BYTES, bytes_max // 4)
    key = F.when(fits | (F.octet_length("key") <= bytes_max // 2), F.col("key"))
    value = F.when(fits, F.col("value")).otherwise(F.substring("value", 1, cut_bytes))
    size = F.coalesce(F.octet_length("value"), F.lit(0))
    cut = F.when(fits, _none()).otherwise(F.array(_header("cut", size)))
    theirs = F.when(fits, _their_headers()).otherwise(_none())
    headers = F.concat(theirs, _our_headers(reason, pipeline), cut)
    return [key.alias("key"), value.alias("value"), headers.alias("headers")]


def room_bytes(bytes_max: int) -> int:
    """What a record's key, value and headers may have together in a batch of `bytes_max`.

    Data that does not compress grows a little in a compressed batch.
    """
    return bytes_max - bytes_max // 64 - _OURS_BYTES


def payload_bytes() -> Column:
    """The size of a row's `key`, `value` and `headers`."""
    lengths = [
        F.coalesce(F.octet_length(name), F.lit(0)).cast("bigint") for name in ("key", "value")
    ]
    headers = F.aggregate(
        F.coalesce("headers", _none()),
        F.lit(0).cast("bigint"),
        lambda total, header: (
            total
            + F.octet_length(header["key"])
            + F.coalesce(F.octet_length(header["value"]), F.lit(0))
            + _HEADER_OVERHEAD_BYTES
        ),
    )
    return lengths[0] + lengths[1] + headers


def _none() -> Column:
    return F.array().cast(_HEADERS_TYPE)


def _their_headers() -> Column:
    kept = F.filter("headers", lambda header: ~header["key"].startswith(HEADER_PREFIX))
    return F.coalesce(kept, _none())


def _our_headers(reason: Column, pipeline: str) -> Column:
    facts = {
        "reason": reason,
        "pipeline": F.lit(pipeline),
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "timestamp": F.unix_millis("timestamp"),
        "attempt": _attempt(),
    }
    return F.array(*(_header(name, value) for name, value in facts.items()))


def _header(name: str, value: Column) -> Column:
    return F.struct(
        F.lit(HEADER_PREFIX + name).alias("key"),
        value.cast("string").cast("binary").alias("value"),
    )


def _attempt() -> Column:
    """One more than the attempts that the record's header counts, which anyone may have written."""
    earlier = F.filter("headers", lambda header: header["key"] == F.lit(f"{HEADER_PREFIX}attempt"))
    counted = F.get(earlier, F.lit(0))["value"].cast("string").try_cast("int")
    return F.coalesce(counted, F.lit(0)).cast("bigint") + 1
