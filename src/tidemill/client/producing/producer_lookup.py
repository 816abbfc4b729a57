"""DescribeProducers: which partitions already hold batches of a producer's epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import check
from tidemill.client.network.offset_lookup import LEADER_MOVED, by_leader
from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.core.ids import TopicPartition
from tidemill.wire.batch import NO_SEQUENCE
from tidemill.wire.generated.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)

__all__ = ["written_by"]


async def written_by(
    cluster: ClusterClient, identity: ProducerIdentity, partitions: Collection[TopicPartition]
) -> set[TopicPartition]:
    """The partitions that have a batch of this id and epoch, whoever has sent it."""

    async def ask() -> set[TopicPartition]:
        await cluster.refresh({partition.topic for partition in partitions})
        found: set[TopicPartition] = set()
        for leader, wanted in by_leader(cluster, dict.fromkeys(partitions, 0)).items():
            response = await cluster.ask_broker(leader, _request(wanted), DescribeProducersResponse)
            found |= _written(response, identity)
        return found

    return await retry_refusals(ask, LEADER_MOVED)


def _request(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    topics: dict[str, TopicRequest] = {}
    for name, index in sorted(partitions):
        topics.setdefault(name, TopicRequest(name=name)).partition_indexes.append(index)
    return DescribeProducersRequest(topics=list(topics.values()))


def _written(
    response: DescribeProducersResponse, identity: ProducerIdentity
) -> set[TopicPartition]:
    found: set[TopicPartition] = set()
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            check(answer.error_code, partition)
            for producer in answer.active_producers:
                same = (producer.producer_id, producer.producer_epoch) == (
                    identity.producer_id,
                    identity.epoch,
                )
                if same and producer.last_sequence != NO_SEQUENCE:
                    found.add(partition)
    return found
