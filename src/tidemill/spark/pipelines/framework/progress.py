"""The progress of a running pipeline as one line, from Spark's progress reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

from tidemill.spark.options.offset_json import PRIVATE_KEY

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StageProgress", "is_batch_running", "progress_line", "stage_progress"]

_IDLE_MESSAGES: Final = ("Getting offsets from ", "Waiting for ")
"""How Spark's status message begins while a query waits for new data."""


@final
@dataclass(frozen=True, slots=True)
class StageProgress:
    """One stage after its last batch."""

    name: str
    batch_id: int
    rows: int
    rows_per_second: float
    lag: int | None
    """Records that the topic had beyond the batch; None if Spark did not report it."""
    late: int
    """Records that came after their window had closed: those of the run if the stage counts them,
    else the rows that Spark has dropped in this batch."""


def stage_progress(
    name: str, query: StreamingQuery, late: Callable[[], int] | None = None
) -> StageProgress | None:
    """None before the first batch. `late` counts what came too late, if the stage does."""
    report = query.lastProgress
    if report is None:
        return None
    facts: Mapping[str, object] = json.loads(report.json)
    found = from_report(name, facts)
    return found if late is None else replace(found, late=late())


def is_batch_running(status: Mapping[str, object]) -> bool:
    """Whether a stop would interrupt a batch; `status` is the query's.

    `isTriggerActive` alone is true nearly all the time: our source waits for data inside a trigger.
    """
    return bool(status["isTriggerActive"]) and not str(status["message"]).startswith(_IDLE_MESSAGES)


def from_report(name: str, facts: Mapping[str, object]) -> StageProgress:
    sources = _dicts(facts.get("sources"))
    operators = _dicts(facts.get("stateOperators"))
    return StageProgress(
        name=name,
        batch_id=int(str(facts.get("batchId", -1))),
        rows=int(str(facts.get("numInputRows", 0))),
        rows_per_second=float(str(facts.get("processedRowsPerSecond", 0.0) or 0.0)),
        lag=_lag(sources),
        late=sum(int(str(item.get("numRowsDroppedByWatermark", 0))) for item in operators),
    )


def _dicts(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _lag(sources: Sequence[Mapping[str, object]]) -> int | None:
    behind = 0
    for source in sources:
        latest, end = _positions(source.get("latestOffset")), _positions(source.get("endOffset"))
        if not latest or not end:
            return None
        behind += sum(max(0, offset - end.get(place, 0)) for place, offset in latest.items())
    return behind


def _positions(offset: object) -> dict[tuple[str, str], int]:
    """`{"topic": {"0": 12}}`, as text or parsed, without our private entry."""
    try:
        topics = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return {}
    if not isinstance(topics, dict):
        return {}
    return {
        (topic, partition): position
        for topic, partitions in topics.items()
        if isinstance(partitions, dict) and topic != PRIVATE_KEY
        for partition, position in partitions.items()
        if isinstance(position, int)
    }


def progress_line(pipeline: str, stages: Sequence[StageProgress]) -> str:
    """One line for the user, always with the same words in the same order."""
    return f"{pipeline}: " + " | ".join(_stage_text(stage) for stage in stages)


def _stage_text(stage: StageProgress) -> str:
    lag = "?" if stage.lag is None else f"{stage.lag:,}"
    late = f", {stage.late:,} late" if stage.late else ""
    return (
        f"{stage.name} batch {stage.batch_id}, {stage.rows:,} rows, "
        f"{stage.rows_per_second:,.0f} rows/s, lag {lag}{late}"
    )
