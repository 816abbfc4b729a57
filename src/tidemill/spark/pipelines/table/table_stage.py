"""The streaming query of the pipeline `table`.

Workers read and take JSON apart; the driver writes, because one transaction of a database has one
connection. Spark's checkpoint says which batch is next. What is in the table decides what a batch
adds, so a batch that is repeated adds nothing, and a new checkpoint begins where the table ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tidemill.spark.pipelines.framework.pipeline import Job, Stage
from tidemill.spark.pipelines.framework.topic_check import input_topic
from tidemill.spark.pipelines.table.databases import database_of
from tidemill.spark.pipelines.table.result_table import QueryBatch, ResultRow, ResultTable
from tidemill.spark.sink.batch_place import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.spark.pipelines.table.table_pipeline import TableSettings

__all__ = ["table_stage"]

_STAGE: Final = "rows"
_COLUMNS: Final = "key,value,partition,offset,timestamp"
_EARLIEST: Final = -2


def table_stage(job: Job, settings: TableSettings) -> Stage:
    """The query, not started. UserError if the table does not fit the settings or the topic."""
    topic = settings.input_topic
    found = input_topic(job.kafka.address, topic)
    table = ResultTable(
        database_of(settings.database), settings.table_name, settings.fields, topic, found.topic_id
    )
    known = table.prepare()
    start = None
    if known:
        places = {str(p): known.get(p, _EARLIEST) for p in range(found.partition_count)}
        start = json.dumps({topic: places})
    rows = job.read(topic, _STAGE, columns=_COLUMNS, start=start)
    text = F.col("value").cast("string")
    fields = [F.get_json_object(text, f"$.{field}") for field in settings.fields]
    chosen = rows.select(
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("time_ms"),
        "key",
        "value",
        F.array(*fields).alias("fields") if fields else F.array().cast("array<string>"),
    )
    return Stage(_STAGE, chosen.writeStream.outputMode("append").foreachBatch(_writer(table)))


def _writer(table: ResultTable) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, batch_id: int) -> None:
        query_id = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query_id is not None, "Spark sets it for every batch"
        table.add(_result_rows(rows), QueryBatch(query_id, batch_id))

    return write


def _result_rows(rows: DataFrame) -> Iterator[ResultRow]:
    for partition, offset, time_ms, key, value, fields in rows.toLocalIterator():
        yield ResultRow(partition, offset, time_ms, _bytes(key), _bytes(value), tuple(fields))


def _bytes(found: bytearray | None) -> bytes | None:
    return None if found is None else bytes(found)
