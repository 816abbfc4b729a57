"""Parses log lines into typed columns with expressions that Spark compiles; Python sees no line.

One regular expression, run once, splits a combined line: it rewrites the line with a separator
between the fields, and `split` makes an array of them. A line that does not match stays unchanged
and gives one field. Every loop in the expression is possessive or bounded, so a hostile line costs
time in proportion to its length, and no stack.

Nothing here may raise: casts are `try_`, indexes are `get`. An error would end the query, and the
same line would end it again after each restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidemill.spark.pipelines.logs.settings import LogSettings

__all__ = ["EVENT_COLUMNS", "parse_lines"]

EVENT_COLUMNS: Final = (
    *("time", "client", "user", "method", "path", "query", "protocol", "status", "bytes"),
    *("referer", "agent", "latency_ms"),
)
"""The columns of an event, besides the origin of its line: `topic`, `partition`, `offset`."""

_SEPARATOR: Final = "\x01"
_TEXT: Final = r'[^"\\]*+(?:\\.[^"\\]*+){0,200}+'
_REQUEST: Final = (
    r'(?:([A-Z]++) ([^ "?\\]++)(?:\?([^ "\\]*+))?+(?: (HTTP/[\d.]++))?+(?=")' rf"|-|({_TEXT}))"
)
_COMBINED: Final = (
    r"^(?:-|(\S++)) \S++ (?:-|(\S++)) \[([^\]]++)\] "
    rf'"{_REQUEST}" (\d{{3}}) (?:-|(\d++))'
    rf'(?: "(?:-(?=")|({_TEXT}))" "(?:-(?=")|({_TEXT}))")?+'
    r"(?: (?:-|(\d++(?:\.\d++)?+)))?+\s*+$"
)
_FIELDS: Final = (
    *("client", "user", "time", "method", "path", "query", "protocol", "request"),
    *("status", "bytes", "referer", "agent", "latency_ms"),
)
"""In the order of the groups. `request` is set if it is not `METHOD path protocol`."""
_CLF_TIME: Final = "dd/MMM/yyyy:HH:mm:ss Z"
_LATENCY_MS: Final = {"s": 1_000.0, "ms": 1.0, "us": 0.001}
_LINE_BYTES_MAX: Final = 64 * 1024

_JSON_NAMES: Final = {
    "client": ("remote_addr", "client"),
    "user": ("user", "remote_user"),
    "time": ("time", "timestamp", "@timestamp"),
    "method": ("method",),
    "path": ("path", "uri"),
    "protocol": ("protocol",),
    "request": ("request",),
    "status": ("status",),
    "bytes": ("bytes", "body_bytes_sent"),
    "referer": ("referer", "http_referer"),
    "agent": ("user_agent", "http_user_agent"),
    "latency_ms": ("latency_ms",),
    "latency_s": ("request_time",),
}
"""Accepted names for the fields of a JSON line; the first one present counts."""

_MILLIS_FROM: Final = 100_000_000_000
"""A bare number from here on is milliseconds since 1970; a smaller one is seconds."""
_MILLIS_MAX: Final = 100_000_000_000_000
"""More than three thousand years: not a time, and too large for a cast."""
_FIRST_TIME: Final = "1970-01-01T00:00:00Z"
_LAST_TIME: Final = "9999-12-31T00:00:00Z"
"""Spark knows times in 292,000 years on both sides, and overflows when it makes windows of them."""
_LATENCY_MS_MAX: Final = 1e12
"""Thirty years. A larger latency counts as this one, so that all figures are finite."""


def parse_lines(records: DataFrame, settings: LogSettings) -> DataFrame:
    """The records with `EVENT_COLUMNS`, and with a `reason` if the line cannot be parsed."""
    lines = records.withColumns({"_line": F.col("value").cast("string")})
    apart = lines.withColumns(
        {
            "_parts": F.when(~_is_json(settings) & _is_short(), _parts()),
            "_json": F.when(_is_json(settings) & _is_short(), _json()),
        }
    )
    texts = apart.withColumns({"_raw": F.coalesce(_from_json(), _from_parts(settings))})
    typed = texts.select(*records.columns, "_line", "_raw", *_typed())
    return typed.withColumns({"reason": _reason(settings)}).drop("_line", "_raw")


def _is_json(settings: LogSettings) -> Column:
    if settings.input_format == "auto":
        return F.ltrim(F.col("_line")).startswith("{")
    return F.lit(settings.input_format == "json")


def _is_short() -> Column:
    return F.octet_length("value") <= _LINE_BYTES_MAX


def _parts() -> Column:
    groups = _SEPARATOR.join(f"${n + 1}" for n in range(len(_FIELDS)))
    rewritten = F.regexp_replace("_line", F.lit(_COMBINED), F.lit(groups))
    return F.split(rewritten, _SEPARATOR, -1)


def _json() -> Column:
    names = dict.fromkeys(name for names in _JSON_NAMES.values() for name in names)
    return F.from_json("_line", ", ".join(f"`{name}` string" for name in names))


def _from_parts(settings: LogSettings) -> Column:
    """A struct of texts; null if the line did not match."""
    parts = F.col("_parts")
    fields = {name: F.get(parts, F.lit(n)) for n, name in enumerate(_FIELDS)}
    texts = {name: F.when(field != "", field) for name, field in fields.items()}
    texts["path"] = F.coalesce(texts["path"], texts.pop("request"))
    factor = _LATENCY_MS[settings.input_latency_unit]
    texts["latency_ms"] = fields["latency_ms"].try_cast("double") * factor
    return F.when(F.size(parts) == len(_FIELDS), _struct(texts))


def _from_json() -> Column:
    found = {
        name: F.coalesce(*(F.col("_json").getField(spelled) for spelled in names))
        for name, names in _JSON_NAMES.items()
    }
    words = F.split(found.pop("request"), " ")
    target = F.coalesce(found["path"], F.get(words, F.lit(1)))
    found["method"] = F.coalesce(found["method"], F.get(words, F.lit(0)))
    found["protocol"] = F.coalesce(found["protocol"], F.get(words, F.lit(2)))
    found["path"] = F.substring_index(target, "?", 1)
    found["query"] = F.when(F.instr(target, "?") > 0, F.substring_index(target, "?", -1))
    found["latency_ms"] = F.coalesce(
        found["latency_ms"].try_cast("double"),
        found.pop("latency_s").try_cast("double") * 1_000.0,
    )
    return F.when(F.col("_json").isNotNull(), _struct(found))


def _struct(texts: dict[str, Column]) -> Column:
    return F.struct(*(texts[name].alias(name) for name in _FIELDS if name in texts))


def _typed() -> list[Column]:
    raw = F.col("_raw")
    columns = {name: raw[name] for name in EVENT_COLUMNS} | {
        "time": _time(raw["time"]),
        "status": raw["status"].try_cast("int"),
        "bytes": F.greatest(F.coalesce(raw["bytes"].try_cast("bigint"), F.lit(0)), F.lit(0)),
        "latency_ms": _latency_ms(raw["latency_ms"]),
    }
    return [column.alias(name) for name, column in columns.items()]


def _latency_ms(given: Column) -> Column:
    """Null if it is negative or no number; Spark counts NaN as larger than everything else."""
    return F.when((given >= 0) & ~F.isnan(given), F.least(given, F.lit(_LATENCY_MS_MAX)))


def _time(text: Column) -> Column:
    """The shape of the text selects the parser: a failed attempt is the most expensive step.

    A date begins with a year of four digits: Spark would put a time without one on today.
    """
    number = text.try_cast("double")
    millis = F.when(number >= _MILLIS_FROM, number).otherwise(number * 1_000)
    parsed = (
        F.when(F.instr(text, "/") == 3, F.try_to_timestamp(text, F.lit(_CLF_TIME)))
        .when((F.instr(text, ":") > 0) & (F.instr(text, "-") == 5), F.try_to_timestamp(text))
        .when(F.abs(millis) < _MILLIS_MAX, F.timestamp_millis(millis.cast("bigint")))
    )
    first, last = (F.lit(time).cast("timestamp") for time in (_FIRST_TIME, _LAST_TIME))
    return F.when(parsed.between(first, last), parsed)


def _reason(settings: LogSettings) -> Column:
    """Why the line is a dead letter; null for an event. The first reason that applies counts."""
    ahead_s = F.unix_timestamp("time") - F.unix_timestamp("timestamp")
    raw = F.col("_raw")
    return (
        F.when(_barrier(), "")
        .when(F.col("value").isNull() | (F.trim("_line") == ""), "the record is empty")
        .when(F.octet_length("value") > _LINE_BYTES_MAX, f"longer than {_LINE_BYTES_MAX} bytes")
        .when(~F.is_valid_utf8("_line"), "not UTF-8")
        .when(raw["time"].isNull() & raw["status"].isNull(), _unknown_format(settings))
        .when(F.col("time").isNull(), F.concat(F.lit("no time in: "), _shown(raw["time"])))
        .when(
            F.col("status").isNull() | ~F.col("status").between(100, 599),
            F.concat(F.lit("no status in: "), _shown(raw["status"])),
        )
        .when(F.col("path").isNull(), "there is no path")
        .when(
            ahead_s > settings.input_ahead_max_s,
            f"the time is more than {settings.input_ahead_max_s} s ahead",
        )
    )


def _barrier() -> Column:
    """Always false, which Spark cannot know: it therefore pushes no filter below our columns.

    A pushed filter would contain the whole expression of each column, and of each column inside it:
    the code that Spark generated for one `reason IS NULL` was six megabytes long.
    """
    return F.spark_partition_id() < 0


def _shown(text: Column) -> Column:
    return F.coalesce(F.substring(text, 1, 60), F.lit("nothing"))


def _unknown_format(settings: LogSettings) -> str:
    sentences = {
        "auto": "neither the combined format nor JSON with known fields",
        "combined": "not the combined format",
        "json": "not JSON with known fields",
    }
    return sentences[settings.input_format]
