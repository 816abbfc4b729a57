"""Times as text in UTC, whatever the time zone of the session is.

Spark's `date_format` writes local time. The session's zone is for lines that name none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["utc_date", "utc_hour", "utc_text"]

_DAY_S: Final = 86_400


def utc_date(time: Column) -> Column:
    """`2026-05-01`."""
    days = F.floor(F.unix_seconds(time) / _DAY_S).cast("int")
    return F.date_from_unix_date(days).cast("string")


def utc_hour(time: Column) -> Column:
    """`07`."""
    return _two_digits(time, 3_600, 24)


def utc_text(time: Column) -> Column:
    """`2026-05-01T07:00:00Z`."""
    clock = F.concat_ws(":", utc_hour(time), _two_digits(time, 60, 60), _two_digits(time, 1, 60))
    return F.concat(utc_date(time), F.lit("T"), clock, F.lit("Z"))


def _two_digits(time: Column, unit_s: int, modulus: int) -> Column:
    count = F.floor(F.unix_seconds(time) / unit_s).cast("bigint")
    return F.lpad(F.pmod(count, F.lit(modulus)).cast("string"), 2, "0")
