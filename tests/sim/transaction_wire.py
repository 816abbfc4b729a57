"""The requests of one transactional producer of either generation (T53).

Requests are made here, not by a client library: a simulated producer must be able to send what a
correct client would never send, such as a batch of a transaction that has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from tidemill.client.admin.coordinator_client import CoordinatorClient, CoordinatorKind
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import BrokerUnreachable, ClientError, check
from tidemill.client.network.offset_lookup import LEADER_MOVED
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from tidemill.wire.generated.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidemill.wire.generated.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tidemill.wire.generated.end_txn import EndTxnRequest, EndTxnResponse
from tidemill.wire.generated.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidemill.wire.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidemill.wire.records import Record, build_batch

__all__ = ["Generation", "Instance", "StepFailed", "TransactionWire"]

T = TypeVar("T")

PATIENCE_S = 20.0
OPENING_S_MAX = 150.0
"""Longer than any fault lasts: a producer that cannot begin by then never will."""
REQUEST_TIMEOUT_S = 10.0
RETRY_S = 0.1
ALL_REPLICAS = -1
MAYBE_DONE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
"""A coordinator's answers when its record may be in the log all the same."""
OFFSET_FETCH_VERSION = 9


class Generation(IntEnum):
    """Which requests a producer sends."""

    TV1 = 1
    """It adds partitions and groups itself, and keeps its epoch."""
    TV2 = 2
    """Brokers add them for it, and every end raises its epoch (KIP-890)."""


class _Versions(NamedTuple):
    produce: int
    offset_commit: int
    end: int


_VERSIONS = {Generation.TV1: _Versions(10, 3, 3), Generation.TV2: _Versions(12, 5, 5)}
_INIT_VERSION = 4
_ADD_VERSION = 3


class Instance(NamedTuple):
    """The id and epoch that a producer was given."""

    producer_id: int
    epoch: int


class StepFailed(Exception):
    """A step was refused for good, or for too long."""

    def __init__(self, reason: Exception, *, in_doubt: bool) -> None:
        super().__init__(f"{type(reason).__name__}: {reason}")
        self.in_doubt = in_doubt
        """Whether an attempt without an answer may have had its effect, or still may."""
        self.code = reason.code if isinstance(reason, KafkaError) else None


class TransactionWire:
    """Sends the steps of one transactional id; each is repeated while its failure may pass."""

    def __init__(
        self, cluster: ClusterClient, transactional_id: str, generation: Generation, group: str
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self.generation = generation
        self._versions = _VERSIONS[generation]
        self._group = group
        self._coordinator = CoordinatorClient(
            cluster, transactional_id, CoordinatorKind.TRANSACTION
        )
        self._group_coordinator = CoordinatorClient(cluster, group)

    async def open(self, *, timeout_ms: int, resumed: Instance | None = None) -> Instance:
        """A new epoch, for a new instance or for one that goes on after an error (KIP-360)."""
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id, transaction_timeout_ms=timeout_ms
        )
        if resumed is not None:
            request.producer_id, request.producer_epoch = resumed

        async def attempt() -> Instance:
            response = await self._coordinator.ask(
                request, InitProducerIdResponse, version=_INIT_VERSION
            )
            check(response.error_code)
            return Instance(response.producer_id, response.producer_epoch)

        return await self._repeat(attempt, patience_s=OPENING_S_MAX)

    async def add_partitions(
        self, instance: Instance, partitions: Collection[TopicPartition]
    ) -> None:
        """TV1 only."""
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for name, index in sorted(partitions):
            topics.setdefault(name, AddPartitionsToTxnTopic(name=name)).partitions.append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=instance.producer_id,
            v3_and_below_producer_epoch=instance.epoch,
            v3_and_below_topics=list(topics.values()),
        )

        async def attempt() -> None:
            response = await self._coordinator.ask(
                request, AddPartitionsToTxnResponse, version=_ADD_VERSION
            )
            for topic in response.results_by_topic_v3_and_below:
                for one in topic.results_by_partition:
                    check(one.partition_error_code)

        await self._repeat(attempt)

    async def produce(
        self,
        instance: Instance,
        partition: TopicPartition,
        records: Sequence[Record],
        sequence: int,
        *,
        patience_s: float = PATIENCE_S,
    ) -> int:
        """Append one batch; its first offset. Without patience it is sent once."""
        batch = build_batch(
            records,
            producer_id=instance.producer_id,
            producer_epoch=instance.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = PartitionProduceData(index=partition.partition, records=bytes(batch))
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=ALL_REPLICAS,
            timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            topic_data=[TopicProduceData(name=partition.topic, partition_data=[data])],
        )

        async def attempt() -> int:
            leader = self._cluster.metadata.try_leader(*partition)
            if leader is None:
                await self._cluster.refresh([partition.topic])
                leader = self._cluster.metadata.try_leader(*partition)
            if leader is None:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
            connection = await self._cluster.connection(leader.broker_id)
            response = await connection.request(
                request,
                ProduceResponse,
                timeout_s=2 * REQUEST_TIMEOUT_S,
                version=self._versions.produce,
            )
            answered = response.responses[0].partition_responses[0]
            check(answered.error_code)
            return answered.base_offset

        return await self._repeat(
            attempt,
            forget=lambda: self._cluster.metadata.forget_leader(*partition),
            patience_s=patience_s,
        )

    async def commit_offset(
        self, instance: Instance, partition: TopicPartition, offset: int
    ) -> None:
        """As part of the transaction."""
        if self.generation is Generation.TV1:
            await self._add_group(instance)
        one = TxnOffsetCommitRequestPartition(
            partition_index=partition.partition, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=self._group,
            producer_id=instance.producer_id,
            producer_epoch=instance.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=partition.topic, partitions=[one])],
        )

        async def attempt() -> None:
            response = await self._group_coordinator.ask(
                request, TxnOffsetCommitResponse, version=self._versions.offset_commit
            )
            check(response.topics[0].partitions[0].error_code)

        await self._repeat(attempt, forget=self._group_coordinator.forget)

    async def _add_group(self, instance: Instance) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=instance.producer_id,
            producer_epoch=instance.epoch,
            group_id=self._group,
        )

        async def attempt() -> None:
            response = await self._coordinator.ask(
                request, AddOffsetsToTxnResponse, version=_ADD_VERSION
            )
            check(response.error_code)

        await self._repeat(attempt)

    async def end(
        self, instance: Instance, *, is_commit: bool, patience_s: float = PATIENCE_S
    ) -> Instance:
        """Commit or abort; who the producer is afterwards."""
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=instance.producer_id,
            producer_epoch=instance.epoch,
            committed=is_commit,
        )

        async def attempt() -> Instance:
            response = await self._coordinator.ask(
                request, EndTxnResponse, version=self._versions.end
            )
            check(response.error_code)
            if self.generation is Generation.TV1:
                return instance
            return Instance(response.producer_id, response.producer_epoch)

        return await self._repeat(attempt, patience_s=patience_s)

    async def is_complete(self) -> bool:
        """Whether all markers of the newest transaction are written."""
        request = DescribeTransactionsRequest(transactional_ids=[self._transactional_id])

        async def attempt() -> bool:
            response = await self._coordinator.ask(request, DescribeTransactionsResponse)
            (found,) = response.transaction_states
            check(found.error_code)
            return found.transaction_state.startswith("Complete")

        return await self._repeat(attempt, patience_s=0.0)

    async def committed_offset(self, partition: TopicPartition, *, is_stable: bool) -> int:
        """The group's offset, -1 if there is none; `is_stable` waits for open transactions."""
        asked = OffsetFetchRequestTopics(
            name=partition.topic, partition_indexes=[partition.partition]
        )
        group = OffsetFetchRequestGroup(group_id=self._group, topics=[asked])
        request = OffsetFetchRequest(groups=[group], require_stable=is_stable)

        async def attempt() -> int:
            response = await self._group_coordinator.ask(
                request, OffsetFetchResponse, version=OFFSET_FETCH_VERSION
            )
            check(response.groups[0].error_code)
            found = response.groups[0].topics[0].partitions[0]
            check(found.error_code)
            return found.committed_offset

        return await self._repeat(
            attempt, forget=self._group_coordinator.forget, patience_s=OPENING_S_MAX
        )

    async def _repeat(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        forget: Callable[[], None] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        in_doubt = False
        failure: Exception
        while True:
            try:
                return await attempt()
            except ClientError as error:
                in_doubt |= not isinstance(error, BrokerUnreachable)
                failure = error
            except KafkaError as error:
                if not error.code.retriable and error.code not in LEADER_MOVED:
                    raise StepFailed(error, in_doubt=in_doubt) from error
                in_doubt |= error.code.indefinite or error.code in MAYBE_DONE
                failure = error
            if loop.time() >= deadline:
                raise StepFailed(failure, in_doubt=in_doubt) from failure
            (forget or self._coordinator.forget)()
            await asyncio.sleep(RETRY_S)
