"""Replicas that refuse to drop committed records, for an administrator who decides (I13)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from tidemill.client.admin.log_directories import ANSWER_S_MAX, describe_logs
from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import ClientError, check, single_result
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.describe_log_dirs import DescribeLogDirsPartition
from tidemill.wire.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)

__all__ = ["LogConflict", "choose_leader", "find_conflicts", "find_conflicts_among"]

_NONE = -1
_UNCLEAN = 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogConflict:
    """Two logs of a partition that differ in what was committed."""

    partition: TopicPartition
    broker_id: int
    """The replica that refuses to follow."""
    leader_id: int
    leader_epoch: int
    differ_from: int
    """The first offset at which the logs differ, or at which the leader's ends."""
    committed_offset: int
    """Everything below was committed, and is on the disk of the replica."""
    own_end: int
    leader_end: int
    """-1 if the leader did not say."""


async def find_conflicts(cluster: ClusterClient) -> list[LogConflict]:
    """What waits for a decision on the brokers that answer, by partition and broker."""
    await cluster.refresh(None)
    described = {
        broker_id: await describe_logs(cluster, broker_id)
        for broker_id in sorted(cluster.metadata.brokers)
    }
    found = [
        conflict
        for broker_id, partitions in described.items()
        for conflict in _conflicts_of(cluster, broker_id, partitions, described)
    ]
    return sorted(found, key=lambda one: (one.partition, one.broker_id))


async def find_conflicts_among(
    cluster: ClusterClient, behind: Mapping[int, Collection[TopicPartition]]
) -> list[LogConflict]:
    """What waits for a decision among these replicas, by broker; silent brokers are passed over."""
    found: list[LogConflict] = []
    for broker_id, partitions in sorted(behind.items()):
        with suppress(ClientError, KafkaError, TimeoutError):
            async with asyncio.timeout(ANSWER_S_MAX):
                described = await describe_logs(cluster, broker_id, partitions)
            found += _conflicts_of(cluster, broker_id, described, {})
    return sorted(found, key=lambda one: (one.partition, one.broker_id))


async def choose_leader(cluster: ClusterClient, conflict: LogConflict, broker_id: int) -> None:
    """Let the log of one replica win; all others drop what differs. Raises KafkaError."""
    name, index = conflict.partition
    request = ElectLeadersRequest(
        election_type=_UNCLEAN,
        topic_partitions=[TopicPartitions(topic=name, partitions=[index])],
        timeout_ms=int(cluster.request_timeout_s * 1000),
        chosen_leader=broker_id,
        chosen_in_epoch=conflict.leader_epoch,
    )

    async def ask() -> None:
        response = await cluster.ask_controller(request, ElectLeadersResponse)
        check(response.error_code, "no leader was chosen")
        topic = single_result(response.replica_election_results)
        result = single_result(topic.partition_result)
        check(result.error_code, result.error_message)

    await retry_refusals(ask, {ErrorCode.NOT_CONTROLLER})


_Described = dict[TopicPartition, DescribeLogDirsPartition]


def _conflicts_of(
    cluster: ClusterClient,
    broker_id: int,
    partitions: _Described,
    described: dict[int, _Described],
) -> Iterator[LogConflict]:
    for name, one in partitions.items():
        topic = cluster.metadata.topics.get(name.topic)
        known = None if topic is None else topic.partitions.get(name.partition)
        if one.refused_cut_offset == _NONE or known is None:
            continue
        leaders = described.get(known.leader, {}).get(name)
        yield LogConflict(
            partition=name,
            broker_id=broker_id,
            leader_id=known.leader,
            leader_epoch=one.refused_in_epoch,
            differ_from=one.refused_cut_offset,
            committed_offset=one.committed_offset,
            own_end=one.log_end_offset,
            leader_end=_NONE if leaders is None else leaders.log_end_offset,
        )
