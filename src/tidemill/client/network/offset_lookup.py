"""ListOffsets for many partitions at once: the start, the end, or the offset at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, final

from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import check
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

__all__ = [
    "EARLIEST_TIMESTAMP",
    "LATEST_TIMESTAMP",
    "LEADER_MOVED",
    "ListedOffset",
    "by_leader",
    "list_offsets",
]

# These timestamps mean positions in a log (T39).
LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2

_CONSUMER = -1
"""The replica_id of a client that is no broker."""

LEADER_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Refusals that pass once the client knows the new leader."""


@final
class ListedOffset(NamedTuple):
    """The record found; offset and timestamp are -1 if there is no record that late."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1
    """Of the record found; for an end, of the leader that named it. -1 if it named none."""


async def list_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0
) -> dict[TopicPartition, ListedOffset]:
    """The first offset at or after each timestamp (or EARLIEST_, LATEST_TIMESTAMP)."""

    async def ask() -> dict[TopicPartition, ListedOffset]:
        await cluster.refresh({partition.topic for partition in wanted})
        found: dict[TopicPartition, ListedOffset] = {}
        for leader, timestamps in by_leader(cluster, wanted).items():
            request = _request(timestamps, isolation_level)
            response = await cluster.ask_broker(leader, request, ListOffsetsResponse)
            found |= _found(response)
        missing = wanted.keys() - found.keys()
        if missing:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no answer about {min(missing)}")
        return found

    return await retry_refusals(ask, LEADER_MOVED)


def by_leader(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int]
) -> dict[int, dict[TopicPartition, int]]:
    """`wanted` by the broker to ask. KafkaError if a partition or its leader is unknown."""
    leaders: dict[int, dict[TopicPartition, int]] = {}
    for partition, timestamp_ms in wanted.items():
        if partition.partition not in cluster.metadata.topic(partition.topic).partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(partition))
        leader = cluster.metadata.try_leader(*partition)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        leaders.setdefault(leader.broker_id, {})[partition] = timestamp_ms
    return leaders


def _request(wanted: Mapping[TopicPartition, int], isolation_level: int) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for (name, index), timestamp_ms in wanted.items():
        topic = topics.setdefault(name, ListOffsetsTopic(name=name))
        topic.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=timestamp_ms))
    return ListOffsetsRequest(
        replica_id=_CONSUMER, isolation_level=isolation_level, topics=list(topics.values())
    )


def _found(response: ListOffsetsResponse) -> dict[TopicPartition, ListedOffset]:
    found: dict[TopicPartition, ListedOffset] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            check(answer.error_code, partition)
            found[partition] = ListedOffset(answer.offset, answer.timestamp, answer.leader_epoch)
    return found
