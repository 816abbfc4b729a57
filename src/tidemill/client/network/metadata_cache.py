"""What the client knows of the cluster: brokers, topics, leaders. Pure; no I/O.

Knowledge comes from Metadata answers and, between them, from the leader hints of Produce and Fetch
answers (T28). A partition's leader only ever moves to a higher leader epoch, so a late answer from
a broker that lags behind cannot bring an old leader back; a topic that was made anew (another topic
id) starts afresh.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final
from uuid import UUID

from tidemill.client.network.errors import error_code
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, ZERO_UUID
from tidemill.wire.generated.metadata import MetadataResponse, MetadataResponseTopic

__all__ = ["BrokerInfo", "MetadataCache", "PartitionInfo", "TopicInfo"]


@final
@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One broker, at the address it told us to use."""

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
    """Topics that the last answer about them refused."""

    def apply(self, response: MetadataResponse) -> None:
        """Take in an answer, about all topics or about some."""
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
        # A topic whose leaders are still being chosen is described all the same.
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
        """A broker named the current leader in an answer; whether that was news to us."""
        info = self.topics.get(topic)
        known = info.partitions.get(partition) if info is not None else None
        if known is None or leader < 0 or epoch <= known.leader_epoch:
            return False
        known.leader = leader
        known.leader_epoch = epoch
        return leader in self.brokers

    def forget_leader(self, topic: str, partition: int) -> None:
        """The leader we know refused; do not ask it again before the next answer."""
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

    def leader(self, topic: str, partition: int) -> BrokerInfo | None:
        """Who leads the partition, if that is known."""
        info = self.topics.get(topic)
        known = info.partitions.get(partition) if info is not None else None
        return self.brokers.get(known.leader) if known is not None else None

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of a topic that an answer gave by id."""
        if topic_id == ZERO_UUID:
            return None
        return next((t.name for t in self.topics.values() if t.topic_id == topic_id), None)


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
