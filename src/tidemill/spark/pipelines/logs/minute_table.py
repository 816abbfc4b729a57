"""Finished windows as rows for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidemill.spark.pipelines.framework.pipeline import Table
from tidemill.spark.pipelines.logs.minutes import Minute

__all__ = ["MINUTE_COLUMNS", "minute_row", "minute_table"]

MINUTE_COLUMNS: Final = (
    *("window", "requests", "2xx", "3xx", "4xx", "5xx", "error %", "MB"),
    *("p50 ms", "p95 ms", "p99 ms", "top path"),
)


def minute_row(minute: Minute) -> tuple[object, ...]:
    """The cells of `MINUTE_COLUMNS`."""
    return (
        f"{minute.start:%Y-%m-%d %H:%M}",
        minute.requests,
        *(minute.status.get(f"{digit}xx", 0) for digit in (2, 3, 4, 5)),
        f"{100 * minute.error_share:.2f}",
        minute.size_bytes // 1_000_000,
        *(
            None if value is None else round(value)
            for value in (minute.latency_p50_ms, minute.latency_p95_ms, minute.latency_p99_ms)
        ),
        minute.top_paths[0][0] if minute.top_paths else None,
    )


def minute_table(minutes: Iterable[Minute]) -> Table:
    """One row for each window, in the given order."""
    return Table(MINUTE_COLUMNS, [minute_row(minute) for minute in minutes])
