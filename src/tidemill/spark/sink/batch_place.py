"""Which batch of which query a task works for, as Spark's local properties tell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self, final
from uuid import UUID

from tidemill.core.errors import UserError

__all__ = ["QUERY_ID", "BatchPlace", "TaskPlace", "task_place"]

QUERY_ID: Final = "sql.streaming.queryId"
"""The local property that has the id of the query."""
_RUN: Final = "spark.jobGroup.id"
_BATCH: Final = "streaming.sql.batchId"


@final
@dataclass(frozen=True, slots=True)
class BatchPlace:
    """One micro-batch. A batch that is repeated after a restart has another run."""

    query_id: str
    """Lives as long as the checkpoint."""
    run_id: str
    batch_id: int

    @property
    def note(self) -> str:
        """The text that is committed with the batch."""
        return f"{self.query_id} {self.run_id}"

    @classmethod
    def try_from_note(cls, note: str, batch_id: int) -> Self | None:
        words = note.split(" ")
        return cls(words[0], words[1], batch_id) if len(words) == 2 else None


@final
@dataclass(frozen=True, slots=True)
class TaskPlace:
    """The task that calls."""

    batch: BatchPlace | None
    """None outside streams."""
    attempt: int = 0


def task_place() -> TaskPlace:
    """Raises UserError if the user has hidden the run from its tasks."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskPlace(None)
    batch_id, query_id = context.getLocalProperty(_BATCH), context.getLocalProperty(QUERY_ID)
    batch = None
    if batch_id is not None and query_id is not None:
        batch = BatchPlace(query_id, _run_id(context.getLocalProperty(_RUN)), int(batch_id))
    return TaskPlace(batch, context.attemptNumber())


def _run_id(job_group: str | None) -> str:
    """Spark tells the run by no other way than the job group, which a user can set, too."""
    try:
        return str(UUID(job_group))
    except (TypeError, ValueError):
        raise UserError(
            "delivery=exactly_once in foreachBatch needs the job group that Spark has set, the id "
            f"of the query's run, and it is {job_group!a}: do not call setJobGroup there"
        ) from None
