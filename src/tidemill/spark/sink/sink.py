"""The sink that Spark calls: writers for a batch and for a stream, and their commit messages.

A writer is used in three places. The driver creates it and pickles it for the executors, which
calls `Delivery.lease` once however often it is pickled. Each task calls `write` on a copy. The
driver calls `commit` or `abort`; for a stream, on a new object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.core.clock import SystemClock
from tidemill.core.errors import UserError
from tidemill.core.rng import SystemRng
from tidemill.spark.sink.batch_place import task_place
from tidemill.spark.sink.client import borrowed_client
from tidemill.spark.sink.delivery import EXACTLY_ONCE, AtLeastOnce, Delivery
from tidemill.spark.sink.exactly_once import ExactlyOnce
from tidemill.spark.sink.lease import SinkLease
from tidemill.spark.sink.options import SinkOptions, sink_options
from tidemill.spark.sink.rows_written import RowsWritten
from tidemill.spark.sink.schema import check_schema
from tidemill.spark.sink.writer import SinkWriter

__all__ = ["batch_writer", "stream_writer"]


class _Sink:
    """The common part of both writers."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._delivery: Delivery = (
            ExactlyOnce(options) if options.delivery == EXACTLY_ONCE else AtLeastOnce()
        )
        self._lease: SinkLease | None = None
        self._is_leased = False

    def __getstate__(self) -> dict[str, Any]:
        if not self._is_leased:
            self._lease = self._delivery.lease()
            self._is_leased = True
        return self.__dict__.copy()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """Write the rows of one task; a failure closes its connections and fails the task."""
        if self._lease is None:
            assert self._options.delivery != EXACTLY_ONCE, "what was pickled has a lease"
            return RowsWritten(self._write(iterator, None))
        task = task_place()
        identity = self._lease.identity
        if self._lease.is_written(task):
            for _ in iterator:
                pass  # Spark expects its rows to be taken
            return RowsWritten(identity=identity, batch=task.batch)
        return RowsWritten(self._write(iterator, identity), identity, task.batch)

    def _write(
        self, iterator: Iterator[pa.RecordBatch], identity: ProducerIdentity | None
    ) -> dict[tuple[str, int], int]:
        """The rows that were acknowledged, by topic and partition."""
        with borrowed_client(self._options, identity) as client:
            writer = SinkWriter(
                client.connections.cluster,
                client.producer,
                self._options,
                clock=SystemClock(),
                rng=SystemRng(),
            )
            delivered = client.connections.run_once(writer.write(iterator))
        return {(topic, index): got.records for (topic, index), got in delivered.items()}


@final
class _BatchWriter(_Sink, DataSourceArrowWriter):
    """For `df.write`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._delivery.commit(_ours(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._delivery.abort(_ours(messages), self._lease)


@final
class _StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """For `df.writeStream`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._delivery.commit(_ours(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._delivery.abort(_ours(messages), self._lease)


def _ours(messages: Sequence[WriterCommitMessage | None]) -> list[RowsWritten | None]:
    return [message if isinstance(message, RowsWritten) else None for message in messages]


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of one `save()`. UserError for unsupported options, columns and modes."""
    if overwrite:
        raise UserError("a topic cannot be overwritten, only appended to: use mode append")
    return _BatchWriter(_checked(options, schema))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of one micro-batch. In complete mode (`overwrite`) every result is written again.

    UserError for unsupported options and columns.
    """
    return _StreamWriter(_checked(options, schema))


def _checked(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    checked = sink_options(options)
    check_schema(schema, checked.topic)
    return checked
