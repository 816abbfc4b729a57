"""The streaming query of the pipeline `enrich`.

A record stays byte for byte as it was, with one more member at its end (`json_splicing`). Python
parses the values, because Spark's own functions understand more than JSON, and less: they take the
first document of several, replace broken text and change long numbers. The join is Spark's. The
table is read when the pipeline starts and sent whole to every worker, so it should be small (up to
some hundred thousand rows).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from tidemill.core.errors import UserError
from tidemill.spark.pipelines.framework.dead_letters import (
    SOURCE_COLUMNS,
    dead_letter_columns,
    payload_bytes,
    room_bytes,
)
from tidemill.spark.pipelines.framework.pipeline import Job, Stage
from tidemill.spark.pipelines.json_splicing import Unsplittable, member_prefix, split_object
from tidemill.spark.sink.options import SinkOptions
from tidemill.wire.compression import NONE, compress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidemill.spark.pipelines.enrich import EnrichSettings

__all__ = ["EnrichQuery"]

_SPLIT_TYPE: Final = pa.struct(
    [
        pa.field("head", pa.binary()),
        pa.field("tail", pa.binary()),
        pa.field("wanted", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("saved", pa.int64()),
    ]
)
_SPLIT_DDL: Final = (
    "struct<head: binary, tail: binary, wanted: string, reason: string, saved: bigint>"
)


@final
class EnrichQuery:
    """Lookup, dead letters and output of one pipeline."""

    def __init__(self, settings: EnrichSettings) -> None:
        self._settings = settings

    def stage(self, job: Job) -> Stage:
        """The query, not started. UserError if the table does not fit the settings."""
        table = self._table(job)
        records = job.read(self._settings.input_topic, "records", columns=SOURCE_COLUMNS)
        rows = self._routed(self._joined(records, table, job), job)
        topics = (self._settings.output_topic, self._settings.dead_topic)
        return Stage("records", job.write_stream(rows, topics))

    def _table(self, job: Job) -> DataFrame:
        """Columns `_key` and `_row`, the row as JSON, held in memory.

        The columns of a CSV file are text: 007 is not the number seven.
        """
        settings = self._settings
        reader = job.spark.read.format(settings.table_format)
        if settings.table_format == "csv":
            reader = reader.option("header", "true")
        table = reader.load(settings.table_file)
        wanted = list(settings.table_columns) or table.columns
        for name in (settings.table_key, *wanted):
            if name not in table.columns:
                raise UserError(
                    f"{settings.table_file} has no column {name}, only {', '.join(table.columns)}"
                )
        row = F.struct(*(F.col(f"`{name}`") for name in wanted))
        rows = table.select(
            F.col(f"`{settings.table_key}`").cast("string").alias("_key"),
            F.to_json(F.to_variant_object(row)).alias("_row"),
        ).where(F.col("_key").isNotNull())
        kept = rows.cache()
        duplicate = kept.groupBy("_key").count().where("count > 1").head()
        if duplicate is not None:
            raise UserError(f"{settings.table_file} has {settings.table_key}={duplicate[0]} twice")
        return kept

    def _joined(self, records: DataFrame, table: DataFrame, job: Job) -> DataFrame:
        """The records with `_split` (`_SPLIT_TYPE`) and the row, if there is one."""
        settings = self._settings
        bytes_max = job.record_bytes_max(settings.output_topic)
        splitter = _splitter(
            tuple(settings.input_key.split(".")),
            settings.output_field,
            codec=job.kafka.writing.codec,
            long_bytes=bytes_max // 2,
        )
        split = arrow_udf(splitter, _SPLIT_DDL)  # type: ignore[call-overload]  # kind: by its hints
        parsed = records.withColumn("_split", split(F.col("value")))
        looked_up = parsed.join(F.broadcast(table), F.col("_split.wanted") == F.col("_key"), "left")
        too_large = self._too_large(bytes_max, job.kafka.writing)
        return looked_up.withColumn("_reason", F.coalesce(self._reason(), too_large))

    def _routed(self, rows: DataFrame, job: Job) -> DataFrame:
        """Rows as records: key, value, headers, and the topic that each goes to."""
        settings = self._settings
        is_dead = F.col("_reason").isNotNull()
        if settings.unmatched == "drop":
            rows = rows.where(is_dead | F.col("_row").isNotNull())
        letter = dead_letter_columns(
            F.col("_reason"), job.name, job.record_bytes_max(settings.dead_topic)
        )
        enriched = (F.col("key"), self._enriched(), F.col("headers"))
        columns = [
            F.when(is_dead, dead).otherwise(whole).alias(name)
            for name, dead, whole in zip(("key", "value", "headers"), letter, enriched, strict=True)
        ]
        topic = F.when(is_dead, settings.dead_topic).otherwise(settings.output_topic)
        return rows.select(*columns, topic.alias("topic"))

    def _enriched(self) -> Column:
        prefix = F.lit(member_prefix(self._settings.output_field)).cast("binary")
        row = F.coalesce("_row", F.lit("null")).cast("binary")
        return F.concat(F.col("_split.head"), prefix, row, F.col("_split.tail"))

    def _reason(self) -> Column:
        reason = F.col("_split.reason")
        if self._settings.unmatched != "dead":
            return reason
        missing = F.concat(
            F.lit(f"no row of the table has {self._settings.table_key}="),
            F.coalesce(F.substring("_split.wanted", 1, 60), F.lit("null")),
        )
        return F.coalesce(reason, F.when(F.col("_key").isNull(), missing))

    def _too_large(self, bytes_max: int, options: SinkOptions) -> Column:
        """Why the enriched record would stop the pipeline; null if its topic takes it."""
        added = F.coalesce(F.octet_length("_row"), F.lit(0))
        added += len(member_prefix(self._settings.output_field).encode()) + len("null,")
        whole = payload_bytes() + added
        is_too_large = (whole - F.col("_split.saved") > room_bytes(bytes_max)) | (
            whole > room_bytes(options.request_bytes_max)
        )
        topic = self._settings.output_topic
        sentence = F.concat(
            F.lit("enriched it has "), whole, F.lit(f" bytes, too many for {topic}")
        )
        return F.when(is_too_large, sentence)


def _splitter(
    path: tuple[str, ...], name: str, *, codec: int, long_bytes: int
) -> Callable[[pa.Array], pa.Array]:
    """The function that workers run on the values of many records."""

    def split(values: pa.Array) -> pa.Array:
        rows = [_split(value.as_py(), path, name, codec, long_bytes) for value in values]
        return pa.array(rows, type=_SPLIT_TYPE)

    return split


def _split(
    value: bytes | None, path: tuple[str, ...], name: str, codec: int, long_bytes: int
) -> tuple[bytes | None, bytes | None, str | None, str | None, int]:
    try:
        parts = split_object(value, path, name)
    except Unsplittable as error:
        return None, None, None, str(error), 0
    head = parts.head + b"," if parts.has_members else parts.head
    saved = 0
    if len(head) > long_bytes and codec != NONE:
        # Only its compressed size decides whether a topic takes such a record.
        saved = max(0, len(head) - len(compress(codec, head)))
    return head, parts.tail, parts.found, None, saved
