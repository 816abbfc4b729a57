"""What a leader asks of the controller: another in-sync set; and what it is told. Pure.

A proposal names the state that it is based on. The controller makes it only if the partition is
still in that state (I14), so of two proposals on the same partition epoch at most one is ever made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicId
from tidemill.metadata.image.metadata_image import PartitionImage

__all__ = ["IsrAnswer", "IsrProposal"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """An in-sync set that a leader wants for one partition."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    partition_epoch: int
    """The state that the proposal is based on."""
    isr: tuple[tuple[int, int], ...]
    """Broker id and broker epoch of each member, the leader among them. A member that has
    registered again since is another life, and may have lost what it had (KIP-903)."""


@final
@dataclass(frozen=True, slots=True)
class IsrAnswer:
    """The controller's answer for one partition."""

    code: ErrorCode
    state: PartitionImage | None = None
    """The partition after the change; only without an error. Replicas and elr may be missing."""
