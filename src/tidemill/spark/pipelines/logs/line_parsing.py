"""Log lines to typed columns, by expressions that Spark compiles: no Python sees a line.

A combined line is taken apart by one regular expression, run once: it rewrites the line with a
separator between the fields, and `split` makes an array of them. A line that does not match stays
as it is and gives one field. Every loop in the expression is possessive or bounded: a hostile line
costs time in proportion to its length, and no stack.

Nothing here may raise: casts are `try_`, indexes are `get`. Spark's own errors would end the query,
and the same line would end it again after each restart.
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
"""Of an event, beside `topic`, `partition` and `offset`, where its line came from."""

_SEPARATOR: Final = "\x01"
_QUOTED: Final = r'"([^"\\]*+(?:\\.[^"\\]*+){0,200}+)"'
_COMBINED: Final = (
    r"^(\S++) \S++ (\S++) \[([^\]]++)\] " + _QUOTED + r" (\d{3}) (\d++|-)"
    rf"(?: {_QUOTED} {_QUOTED})?+(?: (\d++(?:\.\d++)?+|-))?+\s*+$"
)
_FIELDS: Final = (
    *("client", "user", "time", "request", "status", "bytes", "referer", "agent", "latency"),
)
_CLF_TIME: Final = "dd/MMM/yyyy:HH:mm:ss Z"
_LATENCY_MS: Final = {"s": 1_000.0, "ms": 1.0, "us": 0.001}
_LINE_BYTES_MAX: Final = 64 * 1024

_JSON_NAMES: Final = {
    "client": ("remote_addr", "client", "client_ip", "ip"),
    "user": ("remote_user", "user"),
    "time": ("time", "timestamp", "ts", "@timestamp", "time_iso8601", "time_local"),
    "request": ("request",),
    "method": ("method", "request_method"),
    "path": ("path", "uri", "request_uri"),
    "protocol": ("protocol", "server_protocol"),
    "status": ("status",),
    "bytes": ("bytes", "body_bytes_sent", "size"),
    "referer": ("referer", "http_referer"),
    "agent": ("user_agent", "agent", "http_user_agent"),
    "latency_ms": ("latency_ms", "duration_ms"),
    "latency_s": ("request_time",),
}
"""What the fields of a JSON line may be called; the first one that is there counts."""

_MILLIS_FROM: Final = 100_000_000_000
"""A bare number from here on is milliseconds since 1970, below it is seconds."""


def parse_lines(records: DataFrame, settings: LogSettings) -> DataFrame:
    """The records with `EVENT_COLUMNS`, and with `reason` where the line was not understood."""
    line = F.col("value").cast("string")
    lines = records.withColumn("_line", line).withColumn("_is_json", _is_json(settings))
    fields = lines.withColumn("_combined", _combined()).withColumn("_json", _json())
    raw = fields.withColumn("_raw", _raw(settings)).drop("_combined", "_json")
    typed = raw.select(*records.columns, "_line", "_raw", *_typed())
    return typed.withColumn("reason", _reason(settings)).drop("_line", "_raw")


def _is_json(settings: LogSettings) -> Column:
    if settings.input_format == "auto":
        return F.ltrim(F.col("_line")).startswith("{")
    return F.lit(settings.input_format == "json")


def _combined() -> Column:
    rewritten = F.regexp_replace(
        "_line",
        F.lit(_COMBINED),
        F.lit(_SEPARATOR.join(f"${n + 1}" for n in range(len(_FIELDS)))),
    )
    usable = ~F.col("_is_json") & (F.octet_length("value") <= _LINE_BYTES_MAX)
    parts = F.when(usable, F.split(rewritten, _SEPARATOR, -1))
    return F.when(F.size(parts) == len(_FIELDS), parts)


def _json() -> Column:
    names = dict.fromkeys(name for names in _JSON_NAMES.values() for name in names)
    schema = ", ".join(f"`{name}` string" for name in names)
    return F.when(F.col("_is_json"), F.from_json("_line", schema))


def _raw(settings: LogSettings) -> Column:
    """One struct of texts from either format; null if the line has neither."""
    unit_ms = _LATENCY_MS[settings.input_latency_unit]
    combined = {name: _present(F.get("_combined", F.lit(n))) for n, name in enumerate(_FIELDS)}
    latency = combined.pop("latency").try_cast("double") * unit_ms
    json = {
        name: F.coalesce(*(F.col("_json").getField(spelled) for spelled in names))
        for name, names in _JSON_NAMES.items()
    }
    json_latency = F.coalesce(
        json.pop("latency_ms").try_cast("double"), json.pop("latency_s").try_cast("double") * 1_000
    )
    columns = [
        F.coalesce(combined[name], json[name]).alias(name) if name in combined else json[name]
        for name in json
    ]
    named = [column.alias(name) for column, name in zip(columns, json, strict=True)]
    return F.struct(*named, F.coalesce(latency, json_latency).alias("latency_ms"))


def _present(text: Column) -> Column:
    return F.when((text != "-") & (text != ""), text)


def _typed() -> list[Column]:
    raw = F.col("_raw")
    words = F.split(raw["request"], " ")
    is_request = F.size(words) >= 2
    method = F.coalesce(raw["method"], F.when(is_request, F.get(words, F.lit(0))))
    target = F.coalesce(
        raw["path"], F.when(is_request, F.get(words, F.lit(1))), raw["request"]
    )
    protocol = F.coalesce(raw["protocol"], F.when(is_request, F.get(words, F.lit(2))))
    columns = {
        "time": _time(raw["time"]),
        "client": raw["client"],
        "user": raw["user"],
        "method": method,
        "path": F.substring_index(target, "?", 1),
        "query": F.when(F.instr(target, "?") > 0, F.expr("substr(_t, instr(_t, '?') + 1)"))
        if False
        else F.nullif(F.regexp_extract(target, r"\?(.*)", 1), F.lit("")),
        "protocol": protocol,
        "status": raw["status"].try_cast("int"),
        "bytes": F.coalesce(raw["bytes"].try_cast("bigint"), F.lit(0)),
        "referer": raw["referer"],
        "agent": raw["agent"],
        "latency_ms": F.when(raw["latency_ms"] >= 0, raw["latency_ms"]),
    }
    return [column.alias(name) for name, column in columns.items()]


def _time(text: Column) -> Column:
    number = text.try_cast("double")
    seconds = F.when(number >= _MILLIS_FROM, number / 1_000).otherwise(number)
    return F.coalesce(
        F.try_to_timestamp(text, F.lit(_CLF_TIME)),
        F.when(number.isNotNull(), F.timestamp_millis((seconds * 1_000).cast("bigint"))).otherwise(
            F.try_to_timestamp(text)
        ),
    )


def _reason(settings: LogSettings) -> Column:
    """Why the line is a dead letter; null if it is an event. The first that holds counts."""
    ahead_s = F.unix_timestamp("time") - F.unix_timestamp("timestamp")
    raw = F.col("_raw")
    return (
        F.when(F.col("value").isNull() | (F.trim("_line") == ""), "the record is empty")
        .when(F.octet_length("value") > _LINE_BYTES_MAX, f"longer than {_LINE_BYTES_MAX} bytes")
        .when(~F.is_valid_utf8("_line"), "not UTF-8")
        .when(raw["time"].isNull() & raw["status"].isNull(), _unlike(settings))
        .when(F.col("time").isNull(), F.concat(F.lit("no time in: "), _shown(raw["time"])))
        .when(
            F.col("status").isNull() | ~F.col("status").between(100, 599),
            F.concat(F.lit("no status in: "), _shown(raw["status"])),
        )
        .when(F.col("path").isNull(), "there is no path")
        .when(
            ahead_s > settings.input_ahead_max_s,
            f"the time lies more than {settings.input_ahead_max_s} s ahead",
        )
    )


def _shown(text: Column) -> Column:
    return F.coalesce(F.substring(text, 1, 60), F.lit("nothing"))


def _unlike(settings: LogSettings) -> str:
    known = {"auto": "the combined format nor JSON", "json": "JSON", "combined": "the combined"}
    if settings.input_format == "auto":
        return "neither the combined format nor JSON with known fields"
    return f"not {known[settings.input_format]}"
