"""The seam between a pipeline and what runs it.

A pipeline says which topics it touches, and builds its stages: streaming queries that are not
started yet. Name, checkpoint, trigger and start are the runner's, the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

from tidemill.spark.pipelines.framework.run_settings import RunSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Job", "Pipeline", "PipelineKind", "Stage", "Table", "Topics"]


@final
@dataclass(frozen=True, slots=True)
class Topics:
    """What a pipeline reads and writes. Inputs must be there; outputs are made if they are not."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """One streaming query of a pipeline. Its name is part of its checkpoint's path."""

    name: str
    writer: DataStreamWriter


@final
@dataclass(frozen=True, slots=True)
class Job:
    """What `build` gets: a session, and the ways to the topics."""

    name: str
    spark: SparkSession
    run: RunSettings

    def read(self, topic: str, stage: str, *, columns: str) -> DataFrame:
        """A stream of the records of `topic`, whose progress the stage's group shows."""
        return (
            self.spark.readStream.format("tidemill")
            .option("kafka.bootstrap.servers", self.run.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", self.run.start)
            .option("maxOffsetsPerTrigger", self.run.batch_rows_max)
            .option("kafka.group.id", f"{self.run.group or self.name}-{stage}")
            .option("columns", columns)
            .load()
        )

    def write(self, rows: DataFrame, topic: str) -> None:
        """Append the rows of a batch to `topic`; returns when all of them are acknowledged."""
        (
            rows.write.format("tidemill")
            .mode("append")
            .option("kafka.bootstrap.servers", self.run.bootstrap)
            .option("topic", topic)
            .save()
        )


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Facts in rows."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


class Pipeline(Protocol):
    """One pipeline with its settings."""

    def topics(self) -> Topics: ...

    def build(self, job: Job) -> Sequence[Stage]:
        """The stages; UserError if the settings do not fit together with what is there."""
        ...

    def table(self) -> Table | None:
        """What there is to see so far, for a terminal; None if there is nothing."""
        ...

    def report(self) -> str | None:
        """Write what there is to see so far; a line for the person, None if there is nothing."""
        ...


@final
@dataclass(frozen=True, slots=True)
class PipelineKind:
    """What the catalogue knows of a pipeline without loading Spark."""

    name: str
    description: str
    settings_class: type
    make: Callable[[Mapping[str, object]], Pipeline]
    """From values by key; UserError says which one is wrong."""
