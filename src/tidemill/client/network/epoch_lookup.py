"""OffsetForLeaderEpoch for many partitions: where leader epochs ended (T37)."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import check
from tidemill.client.network.offset_lookup import LEADER_MOVED, by_leader
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

__all__ = ["epoch_ends"]

_CONSUMER = -1
"""The replica_id of a client that is no broker."""


async def epoch_ends(
    cluster: ClusterClient, epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where the records of each epoch and of earlier ones end; -1 if the leader cannot say."""

    async def ask() -> dict[TopicPartition, int]:
        await cluster.refresh({partition.topic for partition in epochs})
        ends: dict[TopicPartition, int] = {}
        for leader, wanted in by_leader(cluster, epochs).items():
            response = await cluster.ask_broker(
                leader, _request(wanted), OffsetForLeaderEpochResponse
            )
            ends |= _ends(response)
        return ends

    return await retry_refusals(ask, LEADER_MOVED)


def _request(wanted: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
    topics: dict[str, OffsetForLeaderTopic] = {}
    for (name, index), epoch in wanted.items():
        topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name))
        topic.partitions.append(OffsetForLeaderPartition(partition=index, leader_epoch=epoch))
    return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=list(topics.values()))


def _ends(response: OffsetForLeaderEpochResponse) -> dict[TopicPartition, int]:
    ends: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.topic, answer.partition)
            check(answer.error_code, partition)
            ends[partition] = answer.end_offset
    return ends
