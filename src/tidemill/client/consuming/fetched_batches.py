"""What a Fetch has returned of one partition, before its records are opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.core.ids import TopicPartition
from tidemill.wire.batch import BatchHeader
from tidemill.wire.generated.fetch import AbortedTransaction

__all__ = ["FetchedBatches"]


@final
@dataclass(slots=True)
class FetchedBatches:
    """Batches of one partition as fetched, not opened and not verified."""

    partition: TopicPartition
    batches: list[tuple[memoryview, BatchHeader]]
    from_offset: int
    """The position of the reader: records before it must be left out."""
    high_watermark: int
    aborted: list[AbortedTransaction]
    """With read_committed: aborted transactions whose batches may be among these."""
