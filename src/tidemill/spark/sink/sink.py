"""The sink that Spark calls: writers for a batch and for a stream, and their commit messages.

A writer is used in three places. The driver creates it and pickles it for the executors, which
calls `Delivery.lease` once however often it is pickled. Each task calls `write` on a copy. The
driver calls `commit` or `abort`; for a stream, on a new object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
from tidemill.spark.sink.client import borrowed_client
from tidemill.spark.sink.delivery import Delivery, delivery_of
from tidemill.spark.sink.options import SinkOptions, sink_options
from tidemill.spark.sink.schema import check_schema
from tidemill.spark.sink.writer import SinkWriter

__all__ = ["RowsWritten", "batch_writer", "stream_writer"]


@final
@dataclass(slots=True)
class RowsWritten(WriterCommitMessage):
    """What one task has written, all of it acknowledged."""

    rows: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition."""

    @property
    def total(self) -> int:
        return sum(self.rows.values())


class _Sink:
    """The common part of both writers."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._delivery: Delivery = delivery_of(options.delivery)
        self._lease: ProducerIdentity | None = None
        self._is_leased = False

    def __getstate__(self) -> dict[str, Any]:
        if not self._is_leased:
            self._lease = self._delivery.lease()
            self._is_leased = True
        return self.__dict__.copy()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """Write the rows of one task; a failure closes its connections and fails the task."""
        with borrowed_client(self._options, self._lease) as client:
            writer = SinkWriter(
                client.connections.cluster,
                client.producer,
                self._options,
                clock=SystemClock(),
                rng=SystemRng(),
            )
            delivered = client.connections.run_once(writer.write(iterator))
        return RowsWritten({(t, p): got.records for (t, p), got in delivered.items()})


@final
class _BatchWriter(_Sink, DataSourceArrowWriter):
    """For `df.write`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._delivery.commit(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._delivery.abort(messages, None)


@final
class _StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """For `df.writeStream`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._delivery.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._delivery.abort(messages, batchId)


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
