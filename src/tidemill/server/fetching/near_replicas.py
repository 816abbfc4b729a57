"""Which replica a client reads from that names its rack (KIP-392).

A leader sends such a client to an in-sync follower in its rack. An in-sync follower serves it below
the high watermark that the leader has confirmed, and refuses it otherwise, so that the client
returns to the leader. Clients that name no rack are served by leaders alone: a rack says that the
client understands being sent on.

The leader sends a client on only to a follower that has what the client wants. So no two brokers
send a client to and fro, except for the moments until both know the same image.
"""

from __future__ import annotations

from typing import Protocol, final

from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.replication.partition import Partition

__all__ = ["NearReplicas"]

_LEADER, _NEAREST, _FOLLOWERS, _BY_SELECTOR = "leader", "nearest", "followers", "selector"


class _Cluster(Protocol):
    @property
    def image(self) -> MetadataImage: ...


class _Services(Protocol):
    config: LiveConfig

    @property
    def cluster(self) -> _Cluster: ...


@final
class NearReplicas:
    """The replicas as one client sees them, from its rack."""

    __slots__ = ("_config", "_rack", "_services")

    def __init__(self, services: _Services, rack: str) -> None:
        self._services = services
        self._config = services.config
        self._rack = rack

    def check_readable(self, partition: Partition) -> None:
        """KafkaError unless the client may read this replica of the partition."""
        partition.check_readable()
        # Only by the topic's own key: brokers may have different defaults, and the leader chose.
        if not partition.is_leader and self._key_of(partition) == _LEADER:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "only its leader may be read")

    def try_choose(self, partition: Partition, offset: int) -> int | None:
        """The broker that the client should read from; None: from here."""
        if not partition.is_leader or not _is_readable_at(partition, offset):
            return None
        read_from = self._read_from(partition)
        is_at_home = self._rack_of(self._config.static.node_id) == self._rack
        if read_from == _LEADER or (read_from == _NEAREST and is_at_home):
            return None
        readers = partition.in_sync_readers(offset)
        near = [one for one in readers if self._rack_of(one) == self._rack]
        if not near and read_from == _FOLLOWERS:
            near = readers
        # Different partitions are read from different brokers, and each always from the same one.
        return sorted(near)[partition.name.partition % len(near)] if near else None

    def _read_from(self, partition: Partition) -> str:
        key = self._key_of(partition)
        if key != _BY_SELECTOR:
            return key
        return _LEADER if self._config.current.replica_selector_class == _LEADER else _NEAREST

    def _key_of(self, partition: Partition) -> str:
        """The key of the topic; a view is read from where its base says."""
        found = self._services.cluster.image.topic(partition.name.topic)
        return _BY_SELECTOR if found is None else found.config.tidemill_read_from

    def _rack_of(self, broker_id: int) -> str:
        broker = self._services.cluster.image.brokers.get(broker_id)
        return "" if broker is None else broker.rack


def _is_readable_at(partition: Partition, offset: int) -> bool:
    return partition.log.log_start_offset <= offset <= partition.high_watermark
