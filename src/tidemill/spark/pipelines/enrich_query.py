"""The streaming query of the pipeline `enrich`.

The record keeps all its fields, of any type: it becomes a map of variants, gets one more field with
the row's columns, and is written as JSON again. The table is read when the pipeline starts and sent
whole to every worker, so it should be small (up to some hundred thousand rows).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from pyspark.sql import functions as F

from tidemill.core.errors import UserError
from tidemill.spark.pipelines.framework.dead_letters import SOURCE_COLUMNS, dead_letter_columns
from tidemill.spark.pipelines.framework.pipeline import Job, Stage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidemill.spark.pipelines.enrich import EnrichSettings

__all__ = ["EnrichQuery"]


@final
class EnrichQuery:
    """Lookup, dead letters and output of one pipeline."""

    def __init__(self, settings: EnrichSettings) -> None:
        self._settings = settings

    def stage(self, job: Job) -> Stage:
        """The query, not started. UserError if the table does not fit the settings."""
        table = self._table(job)
        records = job.read(self._settings.input_topic, "records", columns=SOURCE_COLUMNS)
        rows = self._routed(self._joined(records, table), job.name)
        writer = (
            rows.writeStream.format("tidemill")
            .outputMode("append")
            .option("kafka.bootstrap.servers", job.run.bootstrap)
        )
        return Stage("records", writer)

    def _table(self, job: Job) -> DataFrame:
        """Columns `_key` and `_row`, held in memory."""
        settings = self._settings
        reader = job.spark.read.format(settings.table_format)
        if settings.table_format == "csv":
            reader = reader.option("header", "true").option("inferSchema", "true")
        table = reader.load(settings.table_file)
        wanted = list(settings.table_columns) or table.columns
        for name in (settings.table_key, *wanted):
            if name not in table.columns:
                raise UserError(
                    f"{settings.table_file} has no column {name}, only {', '.join(table.columns)}"
                )
        rows = table.select(
            F.col(f"`{settings.table_key}`").cast("string").alias("_key"),
            F.struct(*(F.col(f"`{name}`") for name in wanted)).alias("_row"),
        ).where(F.col("_key").isNotNull())
        kept = rows.cache()
        duplicate = kept.groupBy("_key").count().where("count > 1").head()
        if duplicate is not None:
            raise UserError(f"{settings.table_file} has {settings.table_key}={duplicate[0]} twice")
        return kept

    def _joined(self, records: DataFrame, table: DataFrame) -> DataFrame:
        path = "$" + "".join(f"['{part}']" for part in self._settings.input_key.split("."))
        parsed = records.withColumn("_text", F.col("value").cast("string"))
        parsed = parsed.withColumn("_variant", F.try_parse_json("_text"))
        looked_up = parsed.withColumn("_wanted", F.try_variant_get("_variant", path, "string"))
        return looked_up.join(F.broadcast(table), F.col("_wanted") == F.col("_key"), "left")

    def _routed(self, rows: DataFrame, name: str) -> DataFrame:
        """Rows as records: key, value, headers, and the topic that each goes to."""
        settings = self._settings
        reasoned = rows.withColumn("_reason", self._reason())
        if settings.unmatched == "drop":
            reasoned = reasoned.where(F.col("_reason").isNotNull() | F.col("_row").isNotNull())
        is_dead = F.col("_reason").isNotNull()
        key, value, headers = dead_letter_columns(F.col("_reason"), name)
        return reasoned.select(
            key,
            F.when(is_dead, value).otherwise(self._enriched().cast("binary")).alias("value"),
            F.when(is_dead, headers).otherwise(F.col("headers")).alias("headers"),
            F.when(is_dead, settings.dead_topic).otherwise(settings.output_topic).alias("topic"),
        )

    def _enriched(self) -> Column:
        field = F.lit(self._settings.output_field)
        fields = F.from_json("_text", "map<string,variant>")
        others = F.map_filter(fields, lambda name, _: name != field)
        row = F.to_variant_object("_row")
        return F.to_json(F.map_concat(others, F.create_map(field, row)))

    def _reason(self) -> Column:
        is_object = F.schema_of_variant("_variant").startswith("OBJECT")
        reason = F.when(F.col("_variant").isNull(), "not JSON").when(
            ~is_object, "not a JSON object"
        )
        if self._settings.unmatched == "dead":
            missing = F.concat(
                F.lit(f"no row of the table has {self._settings.table_key}="),
                F.coalesce(F.substring("_wanted", 1, 60), F.lit("null")),
            )
            reason = reason.when(F.col("_key").isNull(), missing)
        return reason
