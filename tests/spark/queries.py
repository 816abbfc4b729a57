"""Helpers for the tests of the source: produce, read, and follow a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.clients import Confluent, Message, Sending

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

DEADLINE_S = 120.0


def put(
    bootstrap: str, topic: str, numbers: Iterable[int], partition: int = 0, codec: str = "none"
) -> None:
    """One record for each number."""
    messages = [Message(b"%d" % number, partition=partition) for number in numbers]
    Confluent().produce(bootstrap, topic, messages, Sending(codec=codec))


def load(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    """A batch; `kafka_group_id` stands for `kafka.group.id`."""
    return _with(spark.read.format("tidemill"), bootstrap, topic, options).load()


def load_stream(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    return _with(spark.readStream.format("tidemill"), bootstrap, topic, options).load()


def _with(reader, bootstrap: str, topic: str, options: dict[str, str]):
    reader = reader.option("kafka.bootstrap.servers", bootstrap)
    if not {"assign", "subscribePattern"} & options.keys():
        reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), value)
    return reader


def numbers_of(rows: Iterable[Row]) -> list[int]:
    return sorted(int(row.value) for row in rows)


class Batches:
    """The batches that a stream has delivered. Tests wait here and nowhere else."""

    def __init__(self) -> None:
        self.numbers: list[list[int]] = []
        self.before: Callable[[int], None] = lambda batch_id: None
        """Called before a batch is stored; may raise."""
        self._changed = threading.Condition()

    def take(self, rows: DataFrame, batch_id: int) -> None:
        self.before(batch_id)
        got = numbers_of(rows.select("value").collect())
        with self._changed:
            self.numbers.append(got)
            self._changed.notify_all()

    @property
    def all(self) -> list[int]:
        return sorted(number for batch in self.numbers for number in batch)

    def wait_for(self, reached: Callable[[list[int]], bool], query: StreamingQuery) -> list[int]:
        def done() -> bool:
            return reached(self.all) or not query.isActive

        with self._changed:
            while not self._changed.wait_for(done, 1.0):
                if not query.isActive:
                    break
        assert query.exception() is None, query.exception()
        return self.all


def start(
    stream: DataFrame, batches: Batches, checkpoint: Path, *, available_now: bool = False
) -> StreamingQuery:
    writer = stream.writeStream.foreachBatch(batches.take)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if available_now:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def drain(stream: DataFrame, checkpoint: Path) -> list[list[int]]:
    """The records that exist now, batch by batch."""
    batches = Batches()
    query = start(stream, batches, checkpoint, available_now=True)
    assert query.awaitTermination(int(DEADLINE_S))
    return batches.numbers


@contextmanager
def following(stream: DataFrame, checkpoint: Path) -> Iterator[tuple[StreamingQuery, Batches]]:
    batches = Batches()
    query = start(stream, batches, checkpoint)
    try:
        yield query, batches
    finally:
        query.stop()
