"""Whether partitions belong to a producer's open transaction: its coordinator knows (KIP-890)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidemill.core.error_codes import ErrorCode
from tidemill.core.ids import TopicPartition

__all__ = ["MARKER_PAUSES_S", "PartitionVerifier"]

MARKER_PAUSES_S = (0.005, 0.01, 0.02, 0.04)
"""Between questions while the coordinator says CONCURRENT_TRANSACTIONS. Markers usually take a
few milliseconds; a producer that is told to come again waits for a tenth of a second."""


class PartitionVerifier(Protocol):
    """Asks the coordinator of a transactional id, here or on another broker."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """NONE for each partition of the open transaction; with `add`, others are added to it."""
        ...
