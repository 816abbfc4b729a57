"""Asks a producer's coordinator whether partitions belong to its open transaction, or adds them.

Whoever appends transactional records asks first (KIP-890): otherwise a request that comes after the
end of its transaction would leave records that no marker ever ends. If this broker coordinates the
transactional id, it looks for itself. Else it asks the coordinator's broker, with one request at a
time for all that wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from tidemill.client.network.errors import ClientError, error_code
from tidemill.client.network.peer_links import PeerLinks
from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.coordinators.transaction.decisions import EPOCH_PER_TRANSACTION
from tidemill.coordinators.transaction.transaction_coordinator import TransactionCoordinator
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import VERIFICATIONS_WAITING_MAX, VERIFIED_PER_REQUEST_MAX
from tidemill.core.loop.awaiting import wait_value
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.metadata.image.metadata_image import TRANSACTION_STATE_TOPIC, MetadataImage
from tidemill.wire.generated.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

__all__ = ["TransactionVerifier"]

VERSION = 5
TIMEOUT_S = 5.0

Verdicts = dict[TopicPartition, ErrorCode]


@final
class _Question:
    """One call that waits for the answer of another broker."""

    __slots__ = ("add", "answer", "partitions", "producer", "transactional_id")

    def __init__(
        self,
        transactional_id: str,
        producer: ProducerName,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.partitions = partitions
        self.add = add
        self.answer: asyncio.Future[Verdicts] = asyncio.get_running_loop().create_future()


@final
class TransactionVerifier:
    """The answers of this broker's coordinator, and of the others."""

    def __init__(
        self,
        node_id: int,
        coordinator: TransactionCoordinator,
        peers: PeerLinks,
        *,
        image: Callable[[], MetadataImage],
        supervisor: Supervisor,
    ) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._peers = peers
        self._image = image
        self._supervisor = supervisor
        self._queues: dict[int, deque[_Question]] = {}
        """Questions for each broker whose task is running; they wait for its next request."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Verdicts:
        """NONE for partitions of the open transaction; with `add` they are added if need be.

        A code of the coordinator: CONCURRENT_TRANSACTIONS and the codes that say that the
        coordinator is elsewhere or loading pass, the others do not.
        """
        producer = ProducerName(producer_id, producer_epoch)
        try:
            leader = self._leader_of(transactional_id)
            if leader == self._node_id:
                return await self.verify_here(transactional_id, producer, partitions, add=add)
            return await self._ask(leader, transactional_id, producer, partitions, add=add)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)

    async def verify_here(
        self,
        transactional_id: str,
        producer: ProducerName,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Verdicts:
        """As `verify`, where this broker is the coordinator. KafkaError: the same for all."""
        if not add:
            return await wait_value(
                self._coordinator.read(
                    transactional_id,
                    lambda shard, _now: shard.check_partitions(
                        transactional_id, producer, partitions
                    ),
                    lambda code: dict.fromkeys(partitions, code),
                )
            )
        code = await wait_value(
            self._coordinator.write(
                transactional_id,
                lambda shard, now: shard.add_partitions(
                    transactional_id,
                    producer,
                    partitions,
                    version=EPOCH_PER_TRANSACTION,
                    now=now,
                ),
                lambda code: code,
            )
        )
        return dict.fromkeys(partitions, code)

    def _leader_of(self, transactional_id: str) -> int:
        index = self._coordinator.partition_of(transactional_id)
        partition = self._image().partition(TRANSACTION_STATE_TOPIC, index)
        if partition is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition.leader

    # --- other brokers ---------------------------------------------------------------------------

    async def _ask(
        self,
        broker_id: int,
        transactional_id: str,
        producer: ProducerName,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Verdicts:
        question = _Question(transactional_id, producer, partitions, add=add)
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = self._queues[broker_id] = deque()
            self._supervisor.spawn(f"questions to broker {broker_id}", self._send_to(broker_id))
        if len(queue) >= VERIFICATIONS_WAITING_MAX:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many questions wait")
        queue.append(question)
        return await question.answer

    async def _send_to(self, broker_id: int) -> None:
        """Send all questions for one broker, a request at a time; it ends when there are none."""
        queue = self._queues[broker_id]
        try:
            while queue:
                await self._send(broker_id, _next_batch(queue))
        finally:
            del self._queues[broker_id]
            for question in queue:
                question.answer.cancel()

    async def _send(self, broker_id: int, batch: dict[str, _Question]) -> None:
        try:
            response = await self._peers.request(
                broker_id,
                _request(batch),
                AddPartitionsToTxnResponse,
                version=VERSION,
                timeout_s=TIMEOUT_S,
            )
            verdicts = _verdicts(response)
        except (KafkaError, ClientError):
            verdicts = {}
        for transactional_id, question in batch.items():
            found = verdicts.get(transactional_id, {})
            if not question.answer.done():
                question.answer.set_result(
                    {
                        name: found.get(name, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                        for name in question.partitions
                    }
                )


def _next_batch(queue: deque[_Question]) -> dict[str, _Question]:
    """Questions for one request, one at least: each transactional id once, the others wait."""
    batch: dict[str, _Question] = {}
    room = VERIFIED_PER_REQUEST_MAX
    for _ in range(len(queue)):
        question = queue.popleft()
        count = len(question.partitions)
        if question.transactional_id in batch or (batch and count > room):
            queue.append(question)
        else:
            batch[question.transactional_id] = question
            room -= count
    return batch


def _request(batch: dict[str, _Question]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=question.producer.producer_id,
                producer_epoch=question.producer.epoch,
                verify_only=not question.add,
                topics=[
                    AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                    for topic, indexes in _by_topic(question.partitions).items()
                ],
            )
            for transactional_id, question in batch.items()
        ]
    )


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    return topics


def _verdicts(response: AddPartitionsToTxnResponse) -> dict[str, Verdicts]:
    return {
        result.transactional_id: {
            TopicPartition(topic.name, one.partition_index): error_code(one.partition_error_code)
            for topic in result.topic_results
            for one in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }
