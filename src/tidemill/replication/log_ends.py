"""Where logs end whose partitions have no leader: the controller asks, every broker tells."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import final
from uuid import UUID

from tidemill.client.network.errors import ClientError, check
from tidemill.client.network.peer_links import PeerLinks
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.metadata.rules.log_ends import LogEnd, LogEndQuestion
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.log.interface import PartitionLog
from tidemill.wire.generated.replica_log_ends import (
    AskedLogPartition,
    AskedLogTopic,
    ReplicaLogEndsRequest,
    ReplicaLogEndsResponse,
)

__all__ = ["LogEndAsker", "tell_log_ends"]

PARTITIONS_PER_SLICE = 1_000
VERSION = 0
TIMEOUT_S = 2.0


async def tell_log_ends(
    cluster: Cluster, replicas: ReplicaManager, asked: Sequence[LogEndQuestion]
) -> list[LogEnd | ErrorCode]:
    """One answer each, in order; a code: not now. KafkaError: another life of us was asked."""
    if _is_behind(cluster.image, asked) and cluster.try_take_look():
        await cluster.read_newest()
    pacer = Pacer(PARTITIONS_PER_SLICE)
    answers: list[LogEnd | ErrorCode] = []
    for question in asked:
        await pacer.step()
        if question.broker_epoch != cluster.broker_epoch:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, "another life of this broker was asked")
        try:
            answers.append(_find_end(cluster.image, replicas, question))
        except KafkaError as refusal:
            answers.append(refusal.code)
    return answers


def _is_behind(image: MetadataImage, asked: Sequence[LogEndQuestion]) -> bool:
    """Whether the controller has written what we have not read yet."""
    if not asked:
        return False
    topic = image.topic_by_id(asked[0].topic_id)
    if topic is None or asked[0].partition >= len(topic.partitions):
        return True
    return topic.partitions[asked[0].partition].leader_epoch < asked[0].leader_epoch


def _find_end(image: MetadataImage, replicas: ReplicaManager, question: LogEndQuestion) -> LogEnd:
    """KafkaError unless nothing can be appended to the log, or cut, in this leader epoch."""
    topic = image.topic_by_id(question.topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = replicas.find(topic.name, question.partition)
    if partition is None or partition.topic_id != question.topic_id:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "its log is not open")
    if partition.offline:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
    partition.check_epoch(question.leader_epoch)
    if partition.is_leader or partition.as_follower.is_being_cut:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its log may still change")
    return _end_of(partition.log)


def _end_of(log: PartitionLog) -> LogEnd:
    """The epoch of the last record, not that of a leader which wrote nothing.

    Where recovery has found damage, the log does not count further than that.
    """
    end = log.log_end_offset
    if log.damage.cut_offset is not None:
        end = max(log.log_start_offset, min(end, log.damage.cut_offset))
    if log.log_start_offset == end:
        return LogEnd(log.epochs.latest, end)
    return LogEnd(log.epochs.epoch_at(end - 1), end)


@final
class LogEndAsker:
    """The questions of one broker to itself and to others."""

    def __init__(self, cluster: Cluster, replicas: ReplicaManager, peers: PeerLinks) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._peers = peers

    async def ask(
        self, broker_id: int, questions: Collection[LogEndQuestion]
    ) -> dict[LogEndQuestion, LogEnd]:
        """What the broker has answered now; KafkaError: nothing."""
        if not questions:
            return {}
        try:
            if broker_id == self._cluster.broker_id:
                asked = list(questions)
                told = await tell_log_ends(self._cluster, self._replicas, asked)
                found = zip(asked, told, strict=True)
                return {one: end for one, end in found if isinstance(end, LogEnd)}
            return await self._ask_peer(broker_id, questions)
        except (ClientError, StoreUnavailable) as error:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, str(error)) from error

    async def _ask_peer(
        self, broker_id: int, questions: Collection[LogEndQuestion]
    ) -> dict[LogEndQuestion, LogEnd]:
        response = await self._peers.request(
            broker_id,
            _request(broker_id, questions),
            ReplicaLogEndsResponse,
            version=VERSION,
            timeout_s=TIMEOUT_S,
        )
        check(response.error_code, f"broker {broker_id}")
        ends = {
            (topic.topic_id, one.partition_index): LogEnd(one.last_epoch, one.end_offset)
            for topic in response.topics
            for one in topic.partitions
            if one.error_code == ErrorCode.NONE
        }
        found = {one: ends.get((one.topic_id, one.partition)) for one in questions}
        return {one: end for one, end in found.items() if end is not None}


def _request(broker_id: int, questions: Collection[LogEndQuestion]) -> ReplicaLogEndsRequest:
    """All questions are to the same life of the broker."""
    topics: dict[UUID, AskedLogTopic] = {}
    request = ReplicaLogEndsRequest(broker_id=broker_id)
    for one in questions:
        request.broker_epoch = one.broker_epoch
        topic = topics.setdefault(one.topic_id, AskedLogTopic(topic_id=one.topic_id))
        asked = AskedLogPartition(partition_index=one.partition, leader_epoch=one.leader_epoch)
        topic.partitions.append(asked)
    request.topics = list(topics.values())
    return request
