"""Whether partitions belong to a producer's open transaction: its coordinator knows (KIP-890)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidemill.core.error_codes import ErrorCode
from tidemill.core.ids import TopicPartition

__all__ = ["PartitionVerifier"]


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
