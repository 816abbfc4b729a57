"""What the client knows about the cluster: brokers, topics, leaders. Pure; no I/O.

It learns from Metadata answers and, between them, from the leader hints of Produce and Fetch
answers (T28). A partition's leader only moves to a higher leader epoch, so a late answer from a
broker that lags behind cannot bring back an old leader. A topic that was deleted and created again
has another topic id, and its epochs start over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final
from uuid import UUID

from tidemill.client.network.errors import error_code
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER
from tidemill.wire.generated.metadata import MetadataResponse, MetadataResponseTopic

__all__ = ["BrokerInfo", "MetadataCache", "PartitionInfo", "TopicInfo"]


@final
@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One broker and the address that it advertises."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


@final
@dataclass(slots=True)
class PartitionInfo:
    """One partition. `leader` is -1 while there is none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline_replicas: list[int]


@final
@dataclass(slots=True)
class TopicInfo:
    """One topic; its partitions by index, sorted."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: dict[int, PartitionInfo]


@final
@dataclass(slots=True)
class MetadataCache:
    """The last known state. `brokers` is replaced by every answer, topics one by one."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, BrokerInfo] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    errors: dict[str, ErrorCode] = field(default_factory=dict)
    """Topics for which the last answer was an error."""

    def apply(self, response: MetadataResponse) -> None:
        """Apply an answer about all topics or about some."""
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            broker.node_id: BrokerInfo(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
        for topic in response.topics:
            self._apply_topic(topic)

    def _apply_topic(self, topic: MetadataResponseTopic) -> None:
        if topic.name is None:
            return
        code = error_code(topic.error_code)
        # LEADER_NOT_AVAILABLE comes with a full description of the topic.
        if code not in {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}:
            self.topics.pop(topic.name, None)
            self.errors[topic.name] = code
            return
        self.errors.pop(topic.name, None)
        known = self.topics.get(topic.name)
        fresh = _topic_info(topic)
        if known is not None and known.topic_id == fresh.topic_id:
            _keep_newer_leaders(known, fresh)
        self.topics[topic.name] = fresh

    def apply_leader_hint(self, topic: str, partition: int, leader: int, epoch: int) -> bool:
        """Apply the leader that an answer named; whether it was new and is a broker we know."""
        info = self.topics.get(topic)
        known = info.partitions.get(partition) if info is not None else None
        if known is None or leader < 0 or epoch <= known.leader_epoch:
            return False
        known.leader = leader
        known.leader_epoch = epoch
        return leader in self.brokers

    def forget_leader(self, topic: str, partition: int) -> None:
        """Drop a leader that refused: it is not asked again before the next Metadata answer."""
        info = self.topics.get(topic)
        if info is not None and partition in info.partitions:
            info.partitions[partition].leader = NO_LEADER

    def topic(self, name: str) -> TopicInfo:
        """A known topic, or KafkaError with the code that the cluster gave."""
        info = self.topics.get(name)
        if info is None:
            code = self.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise KafkaError(code, f"topic {name}")
        return info

    def try_leader(self, topic: str, partition: int) -> BrokerInfo | None:
        """The partition's leader; None if it is not known."""
        info = self.topics.get(topic)
        known = info.partitions.get(partition) if info is not None else None
        return self.brokers.get(known.leader) if known is not None else None


def _topic_info(topic: MetadataResponseTopic) -> TopicInfo:
    assert topic.name is not None
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        name=topic.name,
        topic_id=topic.topic_id,
        internal=topic.is_internal,
        partitions={
            p.partition_index: PartitionInfo(
                index=p.partition_index,
                leader=p.leader_id,
                leader_epoch=p.leader_epoch,
                replicas=p.replica_nodes,
                isr=p.isr_nodes,
                offline_replicas=p.offline_replicas,
            )
            for p in partitions
        },
    )


def _keep_newer_leaders(known: TopicInfo, fresh: TopicInfo) -> None:
    for index, partition in fresh.partitions.items():
        before = known.partitions.get(index)
        if before is not None and before.leader_epoch > partition.leader_epoch >= 0:
            partition.leader = before.leader
            partition.leader_epoch = before.leader_epoch
