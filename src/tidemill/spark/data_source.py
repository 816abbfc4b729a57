"""The data source `tidemill` that Spark loads: batch and stream, source and sink."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, final

from pyspark.sql.datasource import DataSource

from tidemill.spark.options.source_options import SourceOptions, parse_source_options
from tidemill.spark.options.table_options import (
    is_table,
    own_options,
    with_stored_options,
    with_table_options,
)
from tidemill.spark.source.schema import check_schema, source_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["TidemillSource"]

_SOURCE_ONLY_OPTIONS = frozenset({"subscribe", "subscribepattern", "assign"})


@final
class TidemillSource(DataSource):
    """Created by Spark for every query, in the driver's Python worker, and sent to the tasks."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._own_options = own_options(options)
        # If the user gives a schema, Spark does not call `schema`: check the options here, unless
        # the rest of them is stored with a table.
        names = self._own_options.keys()
        if _SOURCE_ONLY_OPTIONS & names and "kafka.bootstrap.servers" in names:
            parse_source_options(self._own_options)

    @classmethod
    def name(cls) -> str:
        return "tidemill"

    def schema(self) -> StructType:
        schema = source_schema(parse_source_options(self._own_options))
        return with_stored_options(schema, self._own_options) if is_table(self.options) else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        from tidemill.spark.source.batch_reader import BatchReader, FilteringBatchReader

        options = self._source_options(schema)
        check_schema(schema)
        return (FilteringBatchReader if options.pushdown else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tidemill.spark.stream.stream_reader import StreamReader

        check_schema(schema)
        return StreamReader(self._source_options(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tidemill.spark.sink.sink import batch_writer

        return batch_writer(self._own_options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tidemill.spark.sink.sink import stream_writer

        return stream_writer(self._own_options, schema, overwrite)

    def _source_options(self, schema: StructType) -> SourceOptions:
        return parse_source_options(with_table_options(self._own_options, schema))
