"""What a task tells the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from pyspark.sql.datasource import WriterCommitMessage

from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.spark.sink.batch_place import BatchPlace

__all__ = ["RowsWritten"]


@final
@dataclass(slots=True)
class RowsWritten(WriterCommitMessage):
    """What one task has written, all of it acknowledged."""

    rows: dict[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition."""
    identity: ProducerIdentity | None = None
    """Of the transaction that the rows are in; None: they are in none."""
    batch: BatchPlace | None = None

    @property
    def total(self) -> int:
        return sum(self.rows.values())
