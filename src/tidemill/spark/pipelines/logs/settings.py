"""The settings of the pipeline `logs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from tidemill.core.config.keys import option

__all__ = ["LogSettings"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The input, its format, and where the results go."""

    input_topic: str = option(
        "web-logs", key="input.topic", doc="The topic with one log line in each record."
    )
    input_format: str = option(
        "auto",
        key="input.format",
        doc="Format of the lines: combined (Apache's and nginx's; also the common format), json, "
        "or auto to decide by each line's first character.",
        choices=("auto", "combined", "json"),
    )
    input_latency_unit: str = option(
        "s",
        key="input.latency.unit",
        doc="Unit of the latency at the end of a combined line, if it has one: s for nginx's "
        "$request_time, us for Apache's %D.",
        choices=("s", "ms", "us"),
    )
    input_ahead_max_s: int = option(
        300,
        key="input.ahead.max.s",
        doc="A line whose time is further ahead of its record's time is a dead letter: one wrong "
        "clock would otherwise close all windows at once.",
        unit="s",
    )
    output_dir: str = option(
        "./logs-output",
        key="output.dir",
        doc="Directory of the results: events/ by date and hour and minutes/ with finished "
        "windows, both as Parquet, and report.html.",
    )
    output_merge: bool = option(
        True,
        key="output.merge",
        doc="Merge the small files of hours and days that are over. Turn it off if something reads "
        "the directory as a stream: a merged file would be new to it.",
    )
    minutes_topic: str = option(
        "web-logs.minutes",
        key="minutes.topic",
        doc="Topic for finished windows as JSON, keyed by their start; empty: not written.",
    )
    dead_topic: str = option(
        "web-logs.dead",
        key="dead.topic",
        doc="Topic for lines that cannot be parsed, unchanged, with the reason in the headers.",
    )
    window_s: int = option(
        60, key="window.s", doc="Length of a window.", unit="s", minimum=1, maximum=86_400
    )
    window_late_s: int = option(
        60,
        key="window.late.s",
        doc="How long a window stays open for late lines, measured against the newest line. Later "
        "lines still go to events/, but no window counts them.",
        unit="s",
        maximum=86_400,
    )
    window_paths: int = option(
        10,
        key="window.paths",
        doc="How many of the most requested paths each window lists.",
        minimum=1,
        maximum=1_000,
    )
    report_minutes: int = option(
        60,
        key="report.minutes",
        doc="Length of time that the report covers, up to the newest finished window.",
        minimum=1,
        maximum=10_080,
    )

    @property
    def events_dir(self) -> str:
        return f"{self.output_dir}/events"

    @property
    def minutes_dir(self) -> str:
        return f"{self.output_dir}/minutes"

    @property
    def report_windows_max(self) -> int:
        return max(1, self.report_minutes * 60 // self.window_s)

    @property
    def report_path(self) -> Path:
        return Path(self.output_dir) / "report.html"
