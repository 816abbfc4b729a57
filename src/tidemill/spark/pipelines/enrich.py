"""The pipeline `enrich`: JSON records, each with a row of a table from a file, to the next topic.

The record keeps all its fields, whatever they are: it becomes a map of variants, gets one more
field with the row's columns, and is written as JSON again. The table is read when the pipeline
starts and sent whole to every worker, so it should be small (up to some hundred thousand rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from tidemill.core.config.keys import option
from tidemill.core.errors import UserError
from tidemill.spark.pipelines.framework.pipeline import Job, Stage, Table, Topics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["Enrich", "EnrichSettings"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichSettings:
    """What is joined with what."""

    input_topic: str = option("orders", key="input.topic", doc="The topic with JSON objects.")
    input_key: str = option(
        "customer_id",
        key="input.key",
        doc="The field of a record that is looked up in the table; a.b is the field b of a.",
    )
    table_file: str = option(
        "./customers.csv",
        key="table.file",
        doc="The table, a file or a folder: CSV with a header line, or Parquet.",
    )
    table_format: str = option(
        "csv", key="table.format", doc="What the table is.", choices=("csv", "parquet")
    )
    table_key: str = option(
        "id",
        key="table.key",
        doc="The column that is compared with input.key, as text. A value may be there only once.",
    )
    table_columns: tuple[str, ...] = option(
        (), key="table.columns", doc="The columns that records get; empty: all of them."
    )
    output_topic: str = option(
        "orders.enriched", key="output.topic", doc="Where enriched records go, with their keys."
    )
    output_field: str = option(
        "customer", key="output.field", doc="The new field, an object with the table's columns."
    )
    unmatched: str = option(
        "keep",
        key="unmatched",
        doc="What becomes of a record that the table has no row for: keep sends it on with null "
        "in the new field, drop leaves it out, dead sends it to the dead-letter topic.",
        choices=("keep", "drop", "dead"),
    )
    dead_topic: str = option(
        "orders.dead",
        key="dead.topic",
        doc="Records that are not JSON objects, as they came, with the reason in the headers.",
    )


@final
class Enrich:
    """One stage: the row itself says whether it goes on or to the dead letters."""

    def __init__(self, settings: EnrichSettings) -> None:
        self._settings = settings

    def topics(self) -> Topics:
        settings = self._settings
        return Topics((settings.input_topic,), (settings.output_topic, settings.dead_topic))

    def table(self) -> Table | None:
        return None

    def report(self) -> str | None:
        return None

    def build(self, job: Job) -> Sequence[Stage]:
        from tidemill.spark.pipelines.framework.dead_letters import SOURCE_COLUMNS

        table = self._table(job)
        records = job.read(self._settings.input_topic, "records", columns=SOURCE_COLUMNS)
        rows = self._routed(self._joined(records, table), job.name)
        writer = (
            rows.writeStream.format("tidemill")
            .outputMode("append")
            .option("kafka.bootstrap.servers", job.run.bootstrap)
        )
        return [Stage("records", writer)]

    def _table(self, job: Job) -> DataFrame:
        """Columns `_key` and `_row`, held in memory. UserError if it does not fit the settings."""
        from pyspark.sql import functions as F

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
        doubled = kept.groupBy("_key").count().where("count > 1").head()
        if doubled is not None:
            raise UserError(f"{settings.table_file} has {settings.table_key}={doubled[0]} twice")
        return kept

    def _joined(self, records: DataFrame, table: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        path = "$" + "".join(f"['{part}']" for part in self._settings.input_key.split("."))
        parsed = records.withColumn("_text", F.col("value").cast("string"))
        parsed = parsed.withColumn("_variant", F.try_parse_json("_text"))
        looked_up = parsed.withColumn("_wanted", F.try_variant_get("_variant", path, "string"))
        return looked_up.join(F.broadcast(table), F.col("_wanted") == F.col("_key"), "left")

    def _routed(self, rows: DataFrame, name: str) -> DataFrame:
        """Rows as records: key, value, headers and the topic each goes to."""
        from pyspark.sql import functions as F

        from tidemill.spark.pipelines.framework.dead_letters import dead_letter_columns

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
        from pyspark.sql import functions as F

        field = F.lit(self._settings.output_field)
        fields = F.from_json("_text", "map<string,variant>")
        others = F.map_filter(fields, lambda name, _: name != field)
        row = F.to_variant_object("_row")
        return F.to_json(F.map_concat(others, F.create_map(field, row)))

    def _reason(self) -> Column:
        from pyspark.sql import functions as F

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
