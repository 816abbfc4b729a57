"""Where the leader is now: spares a Metadata round after NOT_LEADER_OR_FOLLOWER (T28)."""

from __future__ import annotations

from typing import Protocol

from tidemill.metadata.image import BrokerImage, MetadataImage

__all__ = ["LeaderSlot", "leader_of"]


class LeaderSlot(Protocol):
    """The generated `LeaderIdAndEpoch` of either API."""

    leader_id: int
    leader_epoch: int


def leader_of(
    image: MetadataImage, topic: str, index: int
) -> tuple[int, int, BrokerImage | None] | None:
    """Leader, its epoch, and its address if it is alive; None if there is no such partition."""
    partition = image.partition(topic, index)
    if partition is None:
        return None
    return partition.leader, partition.leader_epoch, image.brokers.get(partition.leader)
