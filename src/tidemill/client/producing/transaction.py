"""The transactions of one transactional id, step by step.

    open      a new epoch: older producers are fenced, a transaction that was left open is aborted
    enlist    partitions, before the first batch of each is produced
    enlisted  the partitions of all who share the transaction
    commit_offsets
              offsets of a group, which become visible together with the records
    end       commit or abort, decided in one place for all partitions

The steps take the identity that `open` has given, not this object's: processes may share one
transaction, as Spark's tasks do. Batches are produced with that identity (`BatchProducer`).

Partitions and groups are added by requests of their own, which every broker that has transactions
understands; newer ways to add them are not used. So one epoch lasts until the next `open`.

A step is repeated while the coordinator moves or is busy, or does not answer, for a limited time.
Repeating is safe: `open` only raises the epoch once more, and the others mean the same twice under
one epoch. If an end is refused after an attempt without an answer, or with one that leaves it open,
that attempt may have succeeded: this is `OutcomeUnknown`, neither a success nor a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar, final

from tidemill.client.admin.coordinator_client import (
    COORDINATOR_MOVED,
    CoordinatorClient,
    CoordinatorKind,
)
from tidemill.client.admin.group_offsets import OffsetAndMetadata
from tidemill.client.network.cluster_client import Backoff, ClusterClient
from tidemill.client.network.errors import (
    BrokerUnreachable,
    ClientError,
    WouldBlock,
    check,
)
from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.client.producing.transaction_errors import OutcomeUnknown, transaction_error
from tidemill.core.errors import ErrorCode, KafkaError, TidemillError
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
from tidemill.wire.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

__all__ = ["TransactionClient"]

T = TypeVar("T")

_INIT_VERSION: Final = 4
_ADD_PARTITIONS_VERSION: Final = 3
_ADD_OFFSETS_VERSION: Final = 3
_OFFSET_COMMIT_VERSION: Final = 3
_END_VERSION: Final = 3
"""The last versions, up to which a client adds partitions itself and keeps its epoch (T53)."""

_PASSING: Final = COORDINATOR_MOVED | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.BROKER_NOT_AVAILABLE,
}

_MAYBE_DECIDED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Answers to an end whose decision may be in the log: the coordinator gave up waiting for replicas,
was replaced meanwhile, or has decided and writes the markers."""

_OPEN: Final = "Ongoing"
_NOT_SENT: Final = (BrokerUnreachable, WouldBlock)


@final
class TransactionClient:
    """Takes the steps of transactions.

    A step that fails for good raises TransactionError, or ClientError if no broker was reached.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        transactional_id: str,
        *,
        timeout_ms: int = 60_000,
        patience_s: float = 60.0,
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        """After this time without an end, the coordinator aborts a transaction."""
        self._patience_s = patience_s
        self._coordinator = CoordinatorClient(
            cluster, transactional_id, CoordinatorKind.TRANSACTION
        )

    async def open(self) -> ProducerIdentity:
        """The identity of a new epoch; everything that was open under older ones is aborted."""
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id, transaction_timeout_ms=self._timeout_ms
        )

        async def attempt() -> ProducerIdentity:
            response = await self._coordinator.ask(
                request, InitProducerIdResponse, version=_INIT_VERSION
            )
            check(response.error_code)
            return ProducerIdentity(
                response.producer_id, response.producer_epoch, self._transactional_id
            )

        return await self._repeat("open a transaction", attempt, self._coordinator)

    async def enlist(
        self, identity: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> None:
        """Add partitions to the transaction, which begins with the first."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=_topics(partitions),
        )

        async def attempt() -> None:
            response = await self._coordinator.ask(
                request, AddPartitionsToTxnResponse, version=_ADD_PARTITIONS_VERSION
            )
            results = [
                (topic.name, result)
                for topic in response.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            ]
            # If one is refused, the others are "not attempted": report the cause.
            results.sort(key=lambda found: _is_consequence(found[1].partition_error_code))
            for name, result in results:
                check(result.partition_error_code, TopicPartition(name, result.partition_index))

        await self._repeat("add partitions to the transaction", attempt, self._coordinator)

    async def enlisted(self, identity: ProducerIdentity) -> frozenset[TopicPartition]:
        """The partitions of the open transaction; none if it has ended, or has not begun."""
        request = DescribeTransactionsRequest(transactional_ids=[self._transactional_id])

        async def attempt() -> frozenset[TopicPartition]:
            response = await self._coordinator.ask(request, DescribeTransactionsResponse)
            (found,) = response.transaction_states
            check(found.error_code)
            holder = found.producer_id, found.producer_epoch
            if holder != (identity.producer_id, identity.epoch):
                raise KafkaError(ErrorCode.PRODUCER_FENCED, f"its epoch is {found.producer_epoch}")
            if found.transaction_state != _OPEN:
                return frozenset()
            return frozenset(
                TopicPartition(one.topic, index) for one in found.topics for index in one.partitions
            )

        return await self._repeat("look at the transaction", attempt, self._coordinator)

    async def commit_offsets(
        self,
        identity: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Commit offsets of a group without members, if and when the transaction is committed."""
        added = AddOffsetsToTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=group,
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=group,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            topics=_offset_topics(offsets),
        )
        group_coordinator = CoordinatorClient(self._cluster, group)

        async def add() -> None:
            response = await self._coordinator.ask(
                added, AddOffsetsToTxnResponse, version=_ADD_OFFSETS_VERSION
            )
            check(response.error_code)

        async def commit() -> None:
            response = await group_coordinator.ask(
                request, TxnOffsetCommitResponse, version=_OFFSET_COMMIT_VERSION
            )
            for topic in response.topics:
                for partition in topic.partitions:
                    where = TopicPartition(topic.name, partition.partition_index)
                    check(partition.error_code, f"group {group}, {where}")

        await self._repeat(f"add group {group} to the transaction", add, self._coordinator)
        await self._repeat(f"commit offsets of group {group}", commit, group_coordinator)

    async def end(self, identity: ProducerIdentity, *, commit: bool) -> None:
        """Commit or abort. OutcomeUnknown if the coordinator may have done it or not."""
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )

        async def attempt() -> None:
            response = await self._coordinator.ask(request, EndTxnResponse, version=_END_VERSION)
            check(response.error_code)

        step = "commit the transaction" if commit else "abort the transaction"
        await self._repeat(step, attempt, self._coordinator, decides=True)

    async def _repeat(
        self,
        step: str,
        attempt: Callable[[], Awaitable[T]],
        coordinator: CoordinatorClient,
        *,
        decides: bool = False,
    ) -> T:
        """Repeat `attempt` while its failures may pass. `decides`: its outcome must be known."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        backoff = Backoff()
        in_doubt = False
        failure: TidemillError
        while True:
            try:
                return await attempt()
            except ClientError as error:
                in_doubt |= decides and not isinstance(error, _NOT_SENT)
                failure = error
            except KafkaError as refusal:
                failure = transaction_error(refusal, step, in_doubt=in_doubt)
                if refusal.code not in _PASSING:
                    raise failure from refusal
                maybe_done = refusal.code.indefinite or refusal.code in _MAYBE_DECIDED
                in_doubt |= decides and maybe_done
                if refusal.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    coordinator.forget()
            if loop.time() >= deadline:
                if in_doubt:
                    failure = OutcomeUnknown(f"{step}: no answer, at last: {failure}")
                raise failure
            await asyncio.sleep(backoff.next_s())


def _is_consequence(code: int) -> bool:
    return code in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)


def _topics(partitions: Iterable[TopicPartition]) -> list[AddPartitionsToTxnTopic]:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for name, index in sorted(partitions):
        topics.setdefault(name, AddPartitionsToTxnTopic(name=name)).partitions.append(index)
    return list(topics.values())


def _offset_topics(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> list[TxnOffsetCommitRequestTopic]:
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for (name, index), (offset, metadata) in sorted(offsets.items()):
        topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name)).partitions.append(
            TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=metadata
            )
        )
    return list(topics.values())
