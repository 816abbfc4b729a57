"""What every producer says to a broker and hears from it, whoever fills its batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError, check
from tidemill.client.network.metadata_cache import MetadataCache
from tidemill.client.network.offset_lookup import LEADER_MOVED
from tidemill.client.producing.accumulator import ProducerIdentity
from tidemill.core.errors import KafkaError, TidemillError
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

__all__ = [
    "ALL_REPLICAS",
    "NO_ANSWER",
    "PRODUCE_VERSION_MAX",
    "answers_by_partition",
    "ask_identity",
    "learn_leader",
    "may_pass",
    "produce_request",
]

ALL_REPLICAS: Final = -1
NO_ANSWER: Final = 0
PRODUCE_VERSION_MAX: Final = 12
"""From 13 on Produce names topics by id only."""

_NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1


async def ask_identity(cluster: ClusterClient) -> ProducerIdentity:
    """A producer id of our own; KafkaError if the broker gives none."""
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS
    )
    response = await cluster.ask_any(request, InitProducerIdResponse)
    check(response.error_code, "the broker gives no producer id")
    return ProducerIdentity(response.producer_id, response.producer_epoch)


def produce_request(
    batches: Iterable[tuple[TopicPartition, bytearray]], *, acks: int, timeout_s: float
) -> ProduceRequest:
    """One request for at most one batch of each partition."""
    topics: dict[str, TopicProduceData] = {}
    for (name, index), payload in batches:
        data = PartitionProduceData(index=index, records=payload)
        topics.setdefault(name, TopicProduceData(name=name)).partition_data.append(data)
    return ProduceRequest(
        acks=acks, timeout_ms=int(timeout_s * 1000), topic_data=list(topics.values())
    )


def answers_by_partition(
    response: ProduceResponse,
) -> dict[TopicPartition, PartitionProduceResponse]:
    return {
        TopicPartition(topic.name, answer.index): answer
        for topic in response.responses
        for answer in topic.partition_responses
    }


def learn_leader(
    metadata: MetadataCache, partition: TopicPartition, answer: PartitionProduceResponse
) -> bool:
    """Whether a refusal named a leader that we did not know of (T28)."""
    hint = answer.current_leader
    return hint is not None and metadata.apply_leader_hint(
        *partition, hint.leader_id, hint.leader_epoch
    )


def may_pass(error: TidemillError) -> bool:
    """Whether the same batch may be accepted later."""
    if isinstance(error, KafkaError):
        return error.code.retriable or error.code in LEADER_MOVED
    return isinstance(error, ClientError)
