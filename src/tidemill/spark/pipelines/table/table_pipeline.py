"""The pipeline `table`: every record of a topic is a row of a table, once.

Importing this module loads no Spark; `table_stage` builds the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tidemill.core.config.keys import option
from tidemill.spark.pipelines.framework.checkpoint import CheckpointTerms
from tidemill.spark.pipelines.framework.pipeline import Job, Stage, Table, Topics

__all__ = ["TablePipeline", "TableSettings"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """The topic and the table."""

    input_topic: str = option("orders", key="input.topic", doc="The topic to be stored.")
    database: str = option(
        "./results.db",
        key="database",
        doc="Where the table is: the path of an SQLite file, or postgresql://USER@HOST:PORT/NAME. "
        "Each batch is one transaction there, with the offsets that it goes up to, so a restart "
        "goes on from the database, also without the checkpoint.",
    )
    table_name: str = option(
        "orders", key="table.name", doc="The table; it is created if it does not exist."
    )
    fields: tuple[str, ...] = option(
        (),
        key="fields",
        doc="Fields of JSON records to be stored as columns of text; customer.id becomes "
        "customer_id. Key and value are always stored whole.",
    )


@final
class TablePipeline:
    """One stage; the driver writes each batch to the database."""

    def __init__(self, settings: TableSettings) -> None:
        self._settings = settings

    def topics(self) -> Topics:
        return Topics((self._settings.input_topic,), ())

    def checkpoint_terms(self) -> CheckpointTerms:
        settings = self._settings
        bound = {"input.topic": settings.input_topic, "table.name": settings.table_name}
        return CheckpointTerms(settings=bound)

    def table(self) -> Table | None:
        return None

    def report(self) -> str | None:
        return None

    def build(self, job: Job) -> Sequence[Stage]:
        from tidemill.spark.pipelines.table.table_stage import table_stage

        return [table_stage(job, self._settings)]
