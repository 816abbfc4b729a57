"""The seam between a pipeline and the runner.

A pipeline names its topics and builds its stages: streaming queries that are not started yet. The
runner gives every query its name, checkpoint and trigger, and starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

from tidemill.spark.pipelines.framework.checkpoint import CheckpointTerms
from tidemill.spark.pipelines.framework.kafka_options import KafkaOptions
from tidemill.spark.pipelines.framework.run_settings import RunSettings
from tidemill.spark.pipelines.framework.topic_check import record_bytes_max
from tidemill.spark.sink.transactional_id import transactional_id_of
from tidemill.spark.topic_writing import stream_to_topic, write_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Job", "Pipeline", "PipelineKind", "Stage", "Table", "Topics"]


_READ_COMMITTED: Final = {"kafka.isolation.level": "read_committed"}


@final
@dataclass(frozen=True, slots=True)
class Topics:
    """What a pipeline reads and writes. Inputs must exist; missing outputs are created."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """One streaming query of a pipeline. Its name is part of its checkpoint's path."""

    name: str
    writer: DataStreamWriter
    late: Callable[[], int] | None = None
    """Records of this run that came too late; None: as Spark counts rows."""
    upkeep: Callable[[], bool] | None = None
    """A short step of work beside the batches, for the runner's thread; False: none for now."""


@final
@dataclass(frozen=True, slots=True)
class Job:
    """What `build` works with: a session, and reading and writing of topics."""

    name: str
    spark: SparkSession
    run: RunSettings
    kafka: KafkaOptions

    def read(self, topic: str, stage: str, *, columns: str, start: str | None = None) -> DataFrame:
        """A stream of the records of `topic`; the stage's consumer group shows its progress.

        `start` is where a stage without a checkpoint begins, if it is not for the user to say.
        """
        committed = _READ_COMMITTED if self.run.is_exactly_once else {}
        return (
            self.spark.readStream.format("tidemill")
            .options(**{**committed, **self.kafka.source})
            .option("subscribe", topic)
            .option("startingOffsets", start or self.run.start)
            .option("maxOffsetsPerTrigger", self.run.batch_rows_max)
            .option("alignTimestamps", "true")
            .option("kafka.group.id", f"{self.run.group or self.name}-{stage}")
            .option("columns", columns)
            .load()
        )

    def write(self, rows: DataFrame, topic: str, stage: str) -> None:
        """Append the rows of a stage's batch to `topic`; returns when all are acknowledged."""
        if self.run.is_exactly_once:
            name = f"{transactional_id_of(self.checkpoint_of(stage))}-{topic}"
            write_topic(rows, topic, transactional_id=name, options=self.kafka.sink)
            return
        writer = rows.write.format("tidemill").mode("append").options(**self.kafka.sink)
        writer.option("topic", topic).save()

    def write_stream(self, rows: DataFrame, topics: Sequence[str]) -> DataStreamWriter:
        """A query, not started, that appends each row to the topic that its column names."""
        if self.run.is_exactly_once:
            return stream_to_topic(rows, topics, options=self.kafka.sink)
        writer = rows.writeStream.format("tidemill").outputMode("append")
        return writer.options(**self.kafka.sink)

    def checkpoint_of(self, stage: str) -> str:
        """Where Spark keeps the checkpoint of a stage."""
        return f"{self.run.checkpoint_dir}/{self.name}/{stage}"

    def record_bytes_max(self, topic: str) -> int:
        """How large a record of `topic` may be, as its configuration says now."""
        return record_bytes_max(self.kafka.address, topic)


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Results in rows, for a terminal."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


class Pipeline(Protocol):
    """One pipeline with its settings."""

    def topics(self) -> Topics: ...

    def build(self, job: Job) -> Sequence[Stage]:
        """The stages. UserError if the settings do not fit the data or the checkpoint."""
        ...

    def checkpoint_terms(self) -> CheckpointTerms:
        """Which of its settings, and which version of its queries, a checkpoint is bound to."""
        ...

    def table(self) -> Table | None:
        """The results so far; None if there are none."""
        ...

    def report(self) -> str | None:
        """Write the report of the results so far. A line for the user; None if there are none."""
        ...


@final
@dataclass(frozen=True, slots=True)
class PipelineKind:
    """A pipeline in the catalogue, described without loading Spark."""

    name: str
    description: str
    settings_class: type
    make: Callable[[Mapping[str, object]], Pipeline]
    """From values by key. UserError names the wrong one."""
