"""`spark.readStream.format("tidemill")`: what Spark calls for a stream; `stream_driver` decides.

Spark keeps one process with one `StreamReader` for each source of a query. It asks in turn where
the stream begins, how far the next batch can go, and which tasks there are between two offsets.
Offsets are the JSON of `offset_json`. Tasks get a copy of the reader for `read`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidemill.core.errors import UserError
from tidemill.spark.options.offset_json import QueryOffset
from tidemill.spark.options.source_options import SourceOptions
from tidemill.spark.source.input_task import InputTask
from tidemill.spark.source.range_reading import read_ranges
from tidemill.spark.stream.stream_driver import StreamDriver

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StreamReader"]


@final
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One source of one query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.ending is not None:
            raise UserError(f"{options.ending.option} is for batches: a stream has no end")
        self._options = options
        self._schema = schema
        self._driver: StreamDriver | None = None

    def __getstate__(self) -> dict[str, object]:
        """Tasks get options and schema; the driver's state stays in the driver."""
        return {"_options": self._options, "_schema": self._schema, "_driver": None}

    def initialOffset(self) -> dict[str, object]:
        return self._on_driver().initial_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Our options hold the limits; any value but ReadAllAvailable makes them apply."""
        limits = (self._options.trigger_offsets_max, self._options.trigger_bytes_max)
        if limits == (None, None) and self._options.trigger_offsets_min is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.trigger_offsets_max or (1 << 62))

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        is_limited = not isinstance(limit, ReadAllAvailable)
        found = self._on_driver().next_offset(QueryOffset.from_json(start), is_limited=is_limited)
        return start if found is None else found.to_json()

    def reportLatestOffset(self) -> dict[str, object] | None:
        known = self._on_driver().known_ends
        return QueryOffset(known).to_json() if known else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._on_driver().fix_target()

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        tasks = self._on_driver().plan(QueryOffset.from_json(start), QueryOffset.from_json(end))
        return [InputTask(task) for task in tasks] or [InputTask(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        assert isinstance(partition, InputTask)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return read_ranges(partition.ranges, self._options, schema)

    def commit(self, end: dict[str, object]) -> None:
        self._on_driver().commit(QueryOffset.from_json(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def _on_driver(self) -> StreamDriver:
        if self._driver is None:
            self._driver = StreamDriver(self._options)
        return self._driver
