"""All pipelines, by name."""

from __future__ import annotations

from typing import Final

from tidemill.core.config.keys import build, nearest_key_hint
from tidemill.core.errors import UserError
from tidemill.spark.pipelines.enrich import Enrich, EnrichSettings
from tidemill.spark.pipelines.framework.pipeline import PipelineKind
from tidemill.spark.pipelines.logs.log_pipeline import LogPipeline
from tidemill.spark.pipelines.logs.settings import LogSettings
from tidemill.spark.pipelines.table.table_pipeline import TablePipeline, TableSettings

__all__ = ["PIPELINES", "pipeline_kind"]

PIPELINES: Final = (
    PipelineKind(
        name="logs",
        description="Access-log lines to Parquet, per-minute figures, dead letters and a report.",
        settings_class=LogSettings,
        make=lambda values: LogPipeline(build(LogSettings, values)),
    ),
    PipelineKind(
        name="enrich",
        description="JSON records joined with a table from a file, to the next topic.",
        settings_class=EnrichSettings,
        make=lambda values: Enrich(build(EnrichSettings, values)),
    ),
    PipelineKind(
        name="table",
        description="Records to a table of SQLite or PostgreSQL, each of them exactly once.",
        settings_class=TableSettings,
        make=lambda values: TablePipeline(build(TableSettings, values)),
    ),
)


def pipeline_kind(name: str) -> PipelineKind:
    """UserError with the nearest name if there is no such pipeline."""
    for kind in PIPELINES:
        if kind.name == name:
            return kind
    known = [kind.name for kind in PIPELINES]
    hint = nearest_key_hint(name, known) or f"; there are {', '.join(known)}"
    raise UserError(f"there is no pipeline {name!a}{hint}")
