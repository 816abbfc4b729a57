"""The pipeline `logs`: lines of an access log to events, windows, dead letters and a report.

Importing this module loads no Spark: `tidemill pipeline list` and `report` need none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

from tidemill.core.errors import TidemillError
from tidemill.spark.pipelines.framework.checkpoint import CheckpointTerms
from tidemill.spark.pipelines.framework.pipeline import Job, Stage, Table, Topics
from tidemill.spark.pipelines.logs.minute_history import MinuteHistory
from tidemill.spark.pipelines.logs.minute_table import minute_table
from tidemill.spark.pipelines.logs.minutes import Minute, read_minutes
from tidemill.spark.pipelines.logs.report_page import write_page
from tidemill.spark.pipelines.logs.settings import LogSettings

if TYPE_CHECKING:
    from tidemill.spark.pipelines.logs.late_lines import LateLines
    from tidemill.spark.pipelines.logs.result_files import ResultFiles

__all__ = ["LogPipeline"]

_log = logging.getLogger(__name__)

_STATE_VERSION: Final = 2
"""Raised whenever the query or the figures of open windows change."""


@final
class LogPipeline:
    """One stage, and a report that is rewritten whenever windows finish."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._history = MinuteHistory(settings)
        self._late_lines: LateLines | None = None
        self._files: ResultFiles | None = None

    def topics(self) -> Topics:
        settings = self._settings
        outputs = tuple(name for name in (settings.dead_topic, settings.minutes_topic) if name)
        return Topics((settings.input_topic,), outputs)

    def checkpoint_terms(self) -> CheckpointTerms:
        settings = self._settings
        bound = {"input.topic": settings.input_topic, "window.s": str(settings.window_s)}
        return CheckpointTerms(_STATE_VERSION, bound)

    def build(self, job: Job) -> Sequence[Stage]:
        from tidemill.spark.pipelines.logs.late_lines import LateLines
        from tidemill.spark.pipelines.logs.log_stage import log_stage
        from tidemill.spark.pipelines.logs.result_files import ResultFiles

        settings = self._settings
        self._late_lines = self._late_lines or LateLines()
        self._files = self._files or ResultFiles(settings)
        return [log_stage(job, settings, self._late_lines, self._files, self._refresh_report)]

    def table(self) -> Table | None:
        found = self._stored_minutes()
        return minute_table(found) if found else None

    def report(self) -> str | None:
        found = self._stored_minutes()
        if not found:
            return None
        self._write_report(found)
        return f"report of {len(found)} windows: {self._settings.report_path}"

    def _stored_minutes(self) -> list[Minute]:
        settings = self._settings
        try:
            return read_minutes(settings.minutes_dir, settings.report_minutes, settings.window_s)
        except (OSError, ValueError) as error:  # pyarrow raises ValueErrors
            raise TidemillError(f"{settings.minutes_dir} cannot be read: {error}") from error

    def _refresh_report(self, finished: Sequence[Minute]) -> None:
        """The report is a convenience: neither a full disk, a damaged file nor a figure that
        cannot be drawn may stop the pipeline here."""
        try:
            self._write_report(self._history.extend(finished))
        except (OSError, ValueError, ArithmeticError) as error:  # pyarrow raises ValueErrors
            _log.warning("the report was not written: %s", error)

    def _write_report(self, minutes: Sequence[Minute]) -> None:
        settings = self._settings
        write_page(settings.report_path, minutes, title=f"Access log: {settings.input_topic}")
