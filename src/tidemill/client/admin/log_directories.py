"""What brokers say of their logs, and from that how large partitions are."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

__all__ = [
    "ANSWER_S_MAX",
    "describe_logs",
    "described_logs",
    "find_log_sizes",
    "log_dirs_request",
]

ANSWER_S_MAX = 2.0
"""For a broker that is asked beside other things: it may hang."""


async def describe_logs(
    cluster: ClusterClient, broker_id: int, only: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, DescribeLogDirsPartition]:
    """The logs of one broker, or some of them."""
    response = await cluster.ask_broker(broker_id, log_dirs_request(only), DescribeLogDirsResponse)
    return described_logs(response)


def log_dirs_request(only: Collection[TopicPartition] | None) -> DescribeLogDirsRequest:
    """Asks about all logs, or some of them."""
    if only is None:
        return DescribeLogDirsRequest(topics=None)
    topics: dict[str, list[int]] = {}
    for name, index in only:
        topics.setdefault(name, []).append(index)
    named = [DescribableLogDirTopic(topic=name, partitions=some) for name, some in topics.items()]
    return DescribeLogDirsRequest(topics=named)


def described_logs(
    response: DescribeLogDirsResponse,
) -> dict[TopicPartition, DescribeLogDirsPartition]:
    """What an answer says, by partition."""
    return {
        TopicPartition(topic.name, one.partition_index): one
        for directory in response.results
        for topic in directory.topics
        for one in topic.partitions
    }


async def find_log_sizes(cluster: ClusterClient) -> dict[TopicPartition, int]:
    """The bytes of one replica of each partition, the largest; brokers that hang are left out."""
    sizes: dict[TopicPartition, int] = {}

    async def ask(broker_id: int) -> None:
        with suppress(ClientError, KafkaError, TimeoutError):
            async with asyncio.timeout(ANSWER_S_MAX):
                for name, one in (await describe_logs(cluster, broker_id)).items():
                    sizes[name] = max(one.partition_size, sizes.get(name, 0))

    await asyncio.gather(*(ask(broker_id) for broker_id in sorted(cluster.metadata.brokers)))
    return sizes
