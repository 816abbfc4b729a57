"""Transactions for an administrator: list them, show one, abort one, find those that hang.

A request about one transactional id goes to its coordinator. The list is collected from all
brokers, because each knows only the ids that it coordinates.

A transaction *hangs* if a partition has it open and no coordinator knows that: no marker will ever
end it, and readers of committed records stand still before it. The logs are asked first, then the
coordinators, then the logs again, so that a transaction that ends meanwhile is not taken for one.
The partition's leader aborts it on request, after it has asked the coordinators itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from tidemill.client.admin.coordinator_client import CoordinatorClient, CoordinatorKind
from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import check, error_code
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tidemill.wire.generated.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tidemill.wire.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidemill.wire.generated.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tidemill.wire.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

__all__ = ["OpenTransaction", "TransactionAdmin", "TransactionDescription", "TransactionSummary"]

_PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""Why a request may fail for a moment: a shard loads, or a broker has just left."""
_BEING_ENDED: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_TIMEOUT_MS: Final = 60_000
_NONE: Final = -1


@final
@dataclass(frozen=True, slots=True)
class TransactionSummary:
    """One line of the list."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@final
@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transactional id, as its coordinator knows it."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    """Wall time of the transaction's first partition; None if it never had one."""
    coordinator: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN


@final
@dataclass(frozen=True, slots=True, order=True)
class OpenTransaction:
    """A transaction that a partition's log has open."""

    partition: TopicPartition
    producer_id: int
    first_offset: int
    producer_epoch: int
    last_write_ms: int
    coordinator_epoch: int
    """Of the producer's last marker in the log; -1 if it has none."""


@final
class TransactionAdmin:
    """Administers the transactions of one cluster."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    # --- coordinators ----------------------------------------------------------------------------

    async def list_transactions(self, states: Iterable[str] = ()) -> list[TransactionSummary]:
        """Every transactional id in one of these states, by name; no state means all."""
        request = ListTransactionsRequest(state_filters=list(states))

        async def ask() -> list[TransactionSummary]:
            await self._cluster.refresh([])
            found: list[TransactionSummary] = []
            for broker_id in sorted(self._cluster.metadata.brokers):
                response = await self._cluster.ask_broker(
                    broker_id, request, ListTransactionsResponse
                )
                check(response.error_code, f"broker {broker_id} cannot list its transactions")
                found += [
                    TransactionSummary(
                        one.transactional_id, one.transaction_state, one.producer_id, broker_id
                    )
                    for one in response.transaction_states
                ]
            return sorted(found, key=lambda one: one.transactional_id)

        return await retry_refusals(ask, _PASSING)

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """KafkaError TRANSACTIONAL_ID_NOT_FOUND if no producer uses the id."""
        coordinator = self._coordinator_of(transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

        async def ask() -> TransactionDescription:
            response = await coordinator.ask(request, DescribeTransactionsResponse)
            (found,) = response.transaction_states
            check(found.error_code, f"transactional id {transactional_id}")
            return TransactionDescription(
                transactional_id,
                found.transaction_state,
                found.producer_id,
                found.producer_epoch,
                found.transaction_timeout_ms,
                None if found.transaction_start_time_ms < 0 else found.transaction_start_time_ms,
                await coordinator.broker_id(),
                tuple(
                    TopicPartition(one.topic, index)
                    for one in found.topics
                    for index in one.partitions
                ),
            )

        return await coordinator.retry(ask)

    async def abort(self, transactional_id: str) -> None:
        """Fence the producer of this id, which aborts its open transaction, and wait for that.

        KafkaError INVALID_TXN_STATE if it has none open: a producer is not fenced for nothing.
        """
        found = await self.describe(transactional_id)
        if found.state != "Ongoing":
            detail = f"the transaction of {transactional_id} is {found.state}"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, detail)
        coordinator = self._coordinator_of(transactional_id)
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=_TIMEOUT_MS
        )

        async def ask() -> None:
            response = await coordinator.ask(request, InitProducerIdResponse)
            check(response.error_code, f"transactional id {transactional_id}")

        await retry_refusals(lambda: coordinator.retry(ask), _BEING_ENDED)

    def _coordinator_of(self, transactional_id: str) -> CoordinatorClient:
        return CoordinatorClient(self._cluster, transactional_id, kind=CoordinatorKind.TRANSACTION)

    # --- logs ------------------------------------------------------------------------------------

    async def find_hanging(self) -> list[OpenTransaction]:
        """Transactions that a log has open and no coordinator will end."""
        await self._cluster.refresh(None)
        topics = self._cluster.metadata.topics
        everywhere = [
            TopicPartition(name, index)
            for name, topic in topics.items()
            for index in topic.partitions
        ]
        opened = await self._open_in(everywhere)
        known = await self._known_to_coordinators()
        suspects = {one for one in opened if (one.producer_id, one.partition) not in known}
        if not suspects:
            return []
        names = sorted({one.partition for one in suspects})
        still_open = {(one.partition, one.first_offset) for one in await self._open_in(names)}
        return sorted(one for one in suspects if (one.partition, one.first_offset) in still_open)

    async def abort_hanging(self, partition: TopicPartition, first_offset: int) -> OpenTransaction:
        """Have the transaction aborted that is open in the partition from this offset on.

        KafkaError INVALID_TXN_STATE: there is none, or a coordinator will end it.
        """

        async def ask() -> OpenTransaction:
            await self._cluster.refresh([partition.topic])
            ((leader, _),) = self._by_leader([partition]).items()
            opened = await self._ask_leader(leader, [partition])
            for one in opened:
                if one.first_offset == first_offset:
                    await self._ask_to_abort(leader, one)
                    return one
            detail = f"{partition} has no transaction open that begins at offset {first_offset}"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, detail)

        return await retry_refusals(ask, _PASSING)

    async def _ask_to_abort(self, leader: int, found: OpenTransaction) -> None:
        topic, index = found.partition
        marker = WritableTxnMarker(
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            transaction_result=False,
            coordinator_epoch=max(0, found.coordinator_epoch),
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        response = await self._cluster.ask_broker(leader, request, WriteTxnMarkersResponse)
        for answered in response.markers:
            for one in answered.topics:
                for result in one.partitions:
                    check(result.error_code, f"the transaction in {found.partition} stays open")

    async def _known_to_coordinators(self) -> set[tuple[int, TopicPartition]]:
        """Producers and partitions of all transactions that will still be ended."""
        known: set[tuple[int, TopicPartition]] = set()
        for one in await self.list_transactions(_OPEN):
            try:
                found = await self.describe(one.transactional_id)
            except KafkaError as error:
                if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
                continue
            known |= {(found.producer_id, partition) for partition in found.partitions}
        return known

    async def _open_in(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        async def ask() -> list[OpenTransaction]:
            found: list[OpenTransaction] = []
            for broker_id, names in self._by_leader(partitions).items():
                found += await self._ask_leader(broker_id, names)
            return found

        return await retry_refusals(ask, _PASSING)

    def _by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        leaders: dict[int, list[TopicPartition]] = {}
        for name in partitions:
            leader = self._cluster.metadata.try_leader(*name)
            if leader is None:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(name))
            leaders.setdefault(leader.broker_id, []).append(name)
        return leaders

    async def _ask_leader(
        self, broker_id: int, names: list[TopicPartition]
    ) -> list[OpenTransaction]:
        topics: dict[str, TopicRequest] = {}
        for name, index in names:
            topic = topics.setdefault(name, TopicRequest(name=name))
            topic.partition_indexes.append(index)
        request = DescribeProducersRequest(topics=list(topics.values()))
        response = await self._cluster.ask_broker(broker_id, request, DescribeProducersResponse)
        found: list[OpenTransaction] = []
        for answered in response.topics:
            for one in answered.partitions:
                partition = TopicPartition(answered.name, one.partition_index)
                if one.error_code:
                    raise KafkaError(error_code(one.error_code), str(partition))
                found += [
                    OpenTransaction(
                        partition,
                        producer.producer_id,
                        producer.current_txn_start_offset,
                        producer.producer_epoch,
                        producer.last_timestamp,
                        producer.coordinator_epoch,
                    )
                    for producer in one.active_producers
                    if producer.current_txn_start_offset != _NONE
                ]
        return found
