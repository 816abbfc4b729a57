"""The finished windows that the report covers, kept in memory while a pipeline runs.

Every batch that finishes windows rewrites the report. Reading all windows back from Parquet each
time would open a file for every window of two days. They are read once; each batch adds its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, final

from tidemill.spark.pipelines.logs.minutes import Minute, newest_minutes, read_minutes

if TYPE_CHECKING:
    from tidemill.spark.pipelines.logs.settings import LogSettings

__all__ = ["MinuteHistory"]


@final
class MinuteHistory:
    """At most the windows of `report.minutes`, in the order of their starts."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._minutes: dict[datetime, Minute] | None = None

    def extend(self, finished: Iterable[Minute]) -> list[Minute]:
        """Add the windows of a batch, which are in Parquet already; all that the report covers."""
        settings = self._settings
        if self._minutes is None:
            found = read_minutes(settings.minutes_dir, settings.report_minutes, settings.window_s)
            self._minutes = {minute.start: minute for minute in found}
        self._minutes |= {minute.start: minute for minute in finished}
        kept = newest_minutes(self._minutes, settings.report_minutes, settings.window_s)
        self._minutes = {minute.start: minute for minute in kept}
        return kept
