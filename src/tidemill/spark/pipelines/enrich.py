"""The pipeline `enrich`: adds a row of a table to each JSON record and writes it to the next topic.

Importing this module loads no Spark; `enrich_query` builds the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tidemill.core.config.keys import option
from tidemill.spark.pipelines.framework.checkpoint import CheckpointTerms
from tidemill.spark.pipelines.framework.pipeline import Job, Stage, Table, Topics

__all__ = ["Enrich", "EnrichSettings"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichSettings:
    """The records, the table, and how they are joined."""

    input_topic: str = option("orders", key="input.topic", doc="The topic with JSON objects.")
    input_key: str = option(
        "customer_id",
        key="input.key",
        doc="The field of a record that is looked up in the table; a.b is the field b of a.",
    )
    table_file: str = option(
        "./customers.csv",
        key="table.file",
        doc="The table, a file or a directory: CSV with a header line, or Parquet.",
    )
    table_format: str = option(
        "csv", key="table.format", doc="Format of the table.", choices=("csv", "parquet")
    )
    table_key: str = option(
        "id",
        key="table.key",
        doc="The column that is compared with input.key, as text. Its values must be unique.",
    )
    table_columns: tuple[str, ...] = option(
        (), key="table.columns", doc="The columns to add to records; empty: all."
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
        doc="What happens to a record without a row in the table: keep sends it on with null in "
        "the new field, drop leaves it out, dead sends it to the dead-letter topic.",
        choices=("keep", "drop", "dead"),
    )
    dead_topic: str = option(
        "orders.dead",
        key="dead.topic",
        doc="Topic for records that are not JSON objects, with the reason in the headers.",
    )


@final
class Enrich:
    """One stage without state; each row names the topic it goes to."""

    def __init__(self, settings: EnrichSettings) -> None:
        self._settings = settings

    def topics(self) -> Topics:
        settings = self._settings
        return Topics((settings.input_topic,), (settings.output_topic, settings.dead_topic))

    def checkpoint_terms(self) -> CheckpointTerms:
        return CheckpointTerms(settings={"input.topic": self._settings.input_topic})

    def table(self) -> Table | None:
        return None

    def report(self) -> str | None:
        return None

    def build(self, job: Job) -> Sequence[Stage]:
        from tidemill.spark.pipelines.enrich_query import EnrichQuery

        return [EnrichQuery(self._settings).stage(job)]
