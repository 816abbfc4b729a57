"""Which broker owns what a request names: leaders of partitions, coordinators of groups. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import ZERO_UUID
from tidemill.metadata.image.metadata_image import (
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    MetadataImage,
)

__all__ = ["Owners"]


class _Cluster(Protocol):
    @property
    def image(self) -> MetadataImage: ...


@final
class Owners:
    """The owners as this broker's image has them."""

    def __init__(
        self,
        cluster: _Cluster,
        own_id: int,
        *,
        group_partition: Callable[[str], int],
        transaction_partition: Callable[[str], int],
    ) -> None:
        self._cluster = cluster
        self._own_id = own_id
        self._group_partition = group_partition
        self._transaction_partition = transaction_partition

    def leader(self, topic: str, topic_id: UUID, index: int) -> int:
        """The leader; this broker, which says what is wrong, if there is none."""
        image = self._cluster.image
        name = topic if topic_id == ZERO_UUID else image.names.get(topic_id, "")
        partition = image.partition(name, index)
        if partition is None or partition.leader not in image.brokers:
            return self._own_id
        return partition.leader

    def group(self, group_id: str) -> int:
        """The coordinator of a group; KafkaError COORDINATOR_NOT_AVAILABLE."""
        return self._coordinator(OFFSETS_TOPIC, self._group_partition(group_id))

    def transaction(self, transactional_id: str) -> int:
        """The coordinator of a transactional id; KafkaError COORDINATOR_NOT_AVAILABLE."""
        index = self._transaction_partition(transactional_id)
        return self._coordinator(TRANSACTION_STATE_TOPIC, index)

    def everybody(self) -> list[int]:
        """All brokers that live."""
        return sorted(self._cluster.image.brokers)

    def _coordinator(self, topic: str, index: int) -> int:
        image = self._cluster.image
        partition = image.partition(topic, index)
        if partition is None or partition.leader not in image.brokers:
            detail = "its partition has no leader now"
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, detail)
        return partition.leader
