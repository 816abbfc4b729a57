"""The topic keys that a partition itself obeys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from tidemill.replication.holding.hold_policy import HoldPolicy
from tidemill.wire.produced_batch import BatchPolicy

__all__ = ["PartitionSettings"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """The topic keys that a partition itself obeys; replaced as a whole when one changes."""

    policy: BatchPolicy
    in_sync_min: int = 1
    flush_before_ack: bool = True
    """tidemill.flush=group: acks=all waits for the durable offset, not only the high watermark."""
    segment_bytes: int = 1 << 30
    allows_unclean: bool = False
    """Replicas that are not in sync may be elected: nobody can vouch for their silence."""
    holds: HoldPolicy = field(default_factory=HoldPolicy)
