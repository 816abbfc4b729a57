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
    """What is read, and where the results go."""

    input_topic: str = option(
        "web-logs", key="input.topic", doc="The topic with one log line in each record."
    )
    input_format: str = option(
        "auto",
        key="input.format",
        doc="What the lines are: combined (Apache's and nginx's; the common format too), json, or "
        "auto to look at each line's first character.",
        choices=("auto", "combined", "json"),
    )
    input_latency_unit: str = option(
        "s",
        key="input.latency.unit",
        doc="Unit of the number at the end of a combined line, if there is one: s for nginx's "
        "$request_time, us for Apache's %D.",
        choices=("s", "ms", "us"),
    )
    input_ahead_max_s: int = option(
        300,
        key="input.ahead.max.s",
        doc="A line whose time is further ahead of its record's time is a dead letter: a wrong "
        "clock would close all windows at once.",
        unit="s",
    )
    output_dir: str = option(
        "./logs-output",
        key="output.dir",
        doc="Events go to events/ by date and hour, finished windows to minutes/, as Parquet; the "
        "report is report.html in it.",
    )
    minutes_topic: str = option(
        "web-logs.minutes",
        key="minutes.topic",
        doc="Finished windows as JSON, keyed by their start; empty: none.",
    )
    dead_topic: str = option(
        "web-logs.dead",
        key="dead.topic",
        doc="Lines that are not understood, as they came, with the reason in the headers.",
    )
    window_s: int = option(
        60, key="window.s", doc="Length of a window.", unit="s", minimum=1, maximum=86_400
    )
    window_late_s: int = option(
        60,
        key="window.late.s",
        doc="How long a window stays open for lines that come late, measured by the newest line. "
        "Later ones still go to events/, but are not counted in windows.",
        unit="s",
        maximum=86_400,
    )
    window_paths: int = option(
        10,
        key="window.paths",
        doc="How many of the most wanted paths each window names.",
        minimum=1,
        maximum=1_000,
    )
    report_minutes: int = option(
        60,
        key="report.minutes",
        doc="The report covers this time, back from the newest finished window.",
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
    def report_path(self) -> Path:
        return Path(self.output_dir) / "report.html"
