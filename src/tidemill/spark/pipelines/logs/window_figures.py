"""The figures of one window, as aggregates that Spark keeps in its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column

    from tidemill.spark.pipelines.logs.settings import LogSettings

__all__ = ["FIGURE_INPUTS", "window_figures"]

FIGURE_INPUTS: Final = ("status", "bytes", "path", "latency_ms")
"""The columns of an event that the figures are made of."""
_PATHS_TRACKED: Final = 10_000
"""Counts are exact up to this many different paths in a window, and close beyond."""
_ACCURACY: Final = 1_000
"""Of percentiles: the rank is right within a thousandth."""
_STATUS_CLASSES: Final = (2, 3, 4, 5)
_BYTES_MAX: Final = 2**63 - 1
_PATH_CHARS_TOTAL: Final = 100_000
_PATH_CHARS_MAX: Final = 1_000
"""Longer paths are counted by their beginning: a window must fit into a record of its topic."""


def window_figures(settings: LogSettings) -> list[Column]:
    """The columns of a finished window, without its start and end."""
    return [
        F.count(F.lit(1)).alias("requests"),
        *(
            F.count_if(F.floor(F.col("status") / 100) == digit).alias(f"status_{digit}xx")
            for digit in _STATUS_CLASSES
        ),
        # A sum that leaves 64 bits would raise, and raise again after each restart.
        F.coalesce(F.try_sum("bytes"), F.lit(_BYTES_MAX)).alias("bytes"),
        F.percentile_approx("latency_ms", 0.5, _ACCURACY).alias("latency_p50_ms"),
        F.percentile_approx("latency_ms", 0.95, _ACCURACY).alias("latency_p95_ms"),
        F.percentile_approx("latency_ms", 0.99, _ACCURACY).alias("latency_p99_ms"),
        _top_paths(settings.window_paths).alias("top_paths"),
    ]


def _top_paths(count: int) -> Column:
    """Most requests first; equal counts in the order of their paths."""
    chars_max = min(_PATH_CHARS_MAX, _PATH_CHARS_TOTAL // count)
    ranked = F.array_sort(
        F.expr(f"approx_top_k(substring(path, 1, {chars_max}), {count}, {_PATHS_TRACKED})"),
        lambda a, b: (
            F.when(a["count"] != b["count"], F.signum(b["count"] - a["count"]).cast("int"))
            .when(a["item"] < b["item"], -1)
            .when(a["item"] > b["item"], 1)
            .otherwise(0)
        ),
    )
    return F.transform(
        ranked,
        lambda found: F.struct(found["item"].alias("path"), found["count"].alias("requests")),
    )
