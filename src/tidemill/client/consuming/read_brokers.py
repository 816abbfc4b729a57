"""Which broker a partition is read from: its leader, or a near replica that the leader named.

A reader that says its rack may be sent on to a replica there (KIP-392). It stays with it until the
replica refuses or cannot be reached, or until `NEAR_S` have passed; then the leader is asked again,
which knows the replicas better.
"""

from __future__ import annotations

from typing import final

from tidemill.client.network.metadata_cache import MetadataCache
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition

__all__ = ["ReadBrokers"]

NEAR_S = 300.0
"""Kafka's clients ask the leader again after `metadata.max.age.ms`, which has this default."""


@final
class ReadBrokers:
    """Near replicas by partition; all others are read from their leader."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._near: dict[TopicPartition, tuple[int, float]] = {}
        """The broker, and until when it is asked. Of partitions that are being read."""

    def broker_of(self, partition: TopicPartition, now: float) -> int:
        """Raises KafkaError while the partition has no leader and no near replica."""
        near = self._near.get(partition)
        if near is not None:
            broker_id, until = near
            if now < until and broker_id in self._metadata.brokers:
                return broker_id
            del self._near[partition]
        leader = self._metadata.try_leader(*partition)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        return leader.broker_id

    def read_near(self, partition: TopicPartition, broker_id: int, now: float) -> None:
        """The leader named this broker."""
        self._near[partition] = (broker_id, now + NEAR_S)

    def try_leave(self, partition: TopicPartition) -> bool:
        """Go back to the leader; whether another broker was read from."""
        return self._near.pop(partition, None) is not None

    def leave_broker(self, broker_id: int) -> None:
        """Go back to the leaders of all partitions that were read from this broker."""
        for partition in [one for one, (near, _) in self._near.items() if near == broker_id]:
            del self._near[partition]
