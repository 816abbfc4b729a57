"""Takes batches to the leaders of their partitions and reports what each leader answered.

Theory of operation. Every producer works like this: learn who leads and which producer id to use,
put one batch of each ready partition into one request per leader, keep the request until it is
answered, and read the answer for each batch. The `BatchRouter` does that. Its owner, the producer,
decides which batch goes next and whether a refused one is retried.

A leader has at most `in_flight_max` requests in flight. It answers them in order (T8), and the
router reports them in order. Each batch that was `sent` is reported once: as `delivered`, or as
`refused` with the reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar, final

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError, error_code
from tidemill.client.network.offset_lookup import LEADER_MOVED
from tidemill.client.producing.producer_identity import ProducerIdentity, ask_identity
from tidemill.core.errors import ErrorCode, KafkaError, TidemillError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

__all__ = [
    "ALL_REPLICAS",
    "NO_OFFSET",
    "REQUEST_BYTES_MAX",
    "RETRY_PAUSE_S",
    "BatchOwner",
    "BatchRouter",
    "Enlist",
    "may_pass",
]

ALL_REPLICAS: Final = -1
"""acks: the leader answers when all in-sync replicas have the batch."""
NO_ANSWER: Final = 0
"""acks: the leader does not answer."""
NO_OFFSET: Final = -1
REQUEST_BYTES_MAX: Final = 16 * MIB
RETRY_PAUSE_S: Final = 0.1

_PRODUCE_VERSION_MAX: Final = 12
"""From 13 on Produce names topics by id only."""
_TRANSACTIONAL_VERSION_MAX: Final = 11
"""From 12 on Produce adds partitions to the transaction by itself; ours are enlisted before."""

Enlist = Callable[[Collection[TopicPartition]], Awaitable[None]]
"""Adds partitions to the open transaction. KafkaError or ClientError if it cannot."""


class RoutedBatch(Protocol):
    """The next batch of one partition."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def is_repeated(self) -> bool:
        """Whether this process has sent it more than once."""
        ...


B = TypeVar("B", bound=RoutedBatch)
B_contra = TypeVar("B_contra", bound=RoutedBatch, contravariant=True)


class BatchOwner(Protocol[B_contra]):
    """The producer that gives batches to a router and is told what became of them."""

    def encode(self, batch: B_contra, identity: ProducerIdentity) -> bytearray:
        """The bytes to send; a retry gets the same bytes, sequence numbers included (T29)."""
        ...

    def sent(self, batch: B_contra) -> None:
        """The batch is in flight."""
        ...

    def answered(self, batch: B_contra) -> None:
        """The batch is not in flight any more; called for a whole request before its outcomes."""
        ...

    def delivered(self, batch: B_contra, base_offset: int) -> None:
        """The leader stored the batch; NO_OFFSET with acks=0, or if the leader does not say."""
        ...

    def refused(self, batch: B_contra, error: TidemillError, *, leader_lost: bool) -> None:
        """The batch was not sent or not stored. `leader_lost`: its leader must be looked up."""
        ...


_Exchange = tuple[asyncio.Future[ProduceResponse], Sequence[B]]


@final
class BatchRouter(Generic[B]):
    """Requests to leaders for one producer."""

    def __init__(
        self,
        cluster: ClusterClient,
        owner: BatchOwner[B],
        *,
        acks: int,
        identity: ProducerIdentity | None,
        in_flight_max: int,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        answer_event: asyncio.Event,
        enlist: Enlist | None = None,
    ) -> None:
        self.identity = identity
        """None: asked for before anything is encoded."""
        self._cluster = cluster
        self._owner = owner
        self._acks = acks
        self._in_flight_max = in_flight_max
        self._request_bytes_max = request_bytes_max
        self._answer_event = answer_event
        """Set when an answer, or the loss of one, is there to be collected."""
        self._exchanges: dict[int, deque[_Exchange[B]]] = {}
        """Requests without a collected answer by leader, oldest first."""
        self._enlist = enlist
        self._enlisted: set[TopicPartition] = set()
        """The partitions of the open transaction; only with `enlist`."""

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for an answer."""
        return not self._exchanges

    def is_busy(self, partition: TopicPartition) -> bool:
        """Whether the partition's leader may get no further request now."""
        leader = self._cluster.metadata.try_leader(*partition)
        return leader is not None and self._is_full(leader.broker_id)

    async def send(self, ready: Sequence[B]) -> bool:
        """Send batches, at most one of each partition; whether a leader had room for any."""
        try:
            identity = await self._learn(ready)
        except (ClientError, KafkaError) as error:
            for batch in ready:
                self._owner.refused(batch, error, leader_lost=False)
            return False
        is_sent = False
        for broker_id, batches in self._by_leader(ready).items():
            is_sent |= await self._send_to(broker_id, batches, identity)
        return is_sent

    def collect(self) -> None:
        """Report what has been answered since the last call."""
        for broker_id, exchanges in list(self._exchanges.items()):
            while exchanges and exchanges[0][0].done():
                self._finish(*exchanges.popleft())
            if not exchanges:
                del self._exchanges[broker_id]

    # --- sending ---------------------------------------------------------------------------------

    async def _learn(self, ready: Sequence[B]) -> ProducerIdentity:
        """Learn what a request needs: the leaders, and our identity, which is returned."""
        metadata = self._cluster.metadata
        lost = {b.partition.topic for b in ready if metadata.try_leader(*b.partition) is None}
        if lost:
            await self._cluster.refresh(lost)
        if self.identity is None:
            self.identity = await ask_identity(self._cluster)
        if self._enlist is not None:
            fresh = {batch.partition for batch in ready} - self._enlisted
            if fresh:
                await self._enlist(fresh)
                self._enlisted |= fresh
        return self.identity

    def _by_leader(self, ready: Sequence[B]) -> dict[int, list[B]]:
        """The batches of leaders with room; a refresh may have moved some to a full one."""
        metadata = self._cluster.metadata
        leaders: dict[int, list[B]] = {}
        for batch in ready:
            leader = metadata.try_leader(*batch.partition)
            if leader is None:
                code = metadata.errors.get(batch.partition.topic, ErrorCode.LEADER_NOT_AVAILABLE)
                self._owner.refused(batch, KafkaError(code), leader_lost=False)
            elif not self._is_full(leader.broker_id):
                leaders.setdefault(leader.broker_id, []).append(batch)
        return leaders

    def _is_full(self, broker_id: int) -> bool:
        return len(self._exchanges.get(broker_id, ())) >= self._in_flight_max

    async def _send_to(
        self, broker_id: int, batches: Sequence[B], identity: ProducerIdentity
    ) -> bool:
        taken, request = self._request(batches, identity)
        try:
            connection = await self._cluster.connection(broker_id)
            version_max = (
                _TRANSACTIONAL_VERSION_MAX if identity.transactional else _PRODUCE_VERSION_MAX
            )
            version = min(connection.version_of(ApiKey.PRODUCE), version_max)
            if self._acks == NO_ANSWER:
                await connection.send_unanswered(request, version=version)
                for batch in taken:
                    self._owner.delivered(batch, NO_OFFSET)
                return True
            timeout_s = self._cluster.request_timeout_s
            future = connection.request_nowait(
                request, ProduceResponse, version=version, timeout_s=timeout_s
            )
        except (ClientError, KafkaError) as error:
            self._refuse_all(taken, error)
            return False
        for batch in taken:
            self._owner.sent(batch)
        future.add_done_callback(lambda _: self._answer_event.set())
        self._exchanges.setdefault(broker_id, deque()).append((future, taken))
        return True

    def _request(
        self, batches: Sequence[B], identity: ProducerIdentity
    ) -> tuple[list[B], ProduceRequest]:
        """As many of the batches as one request may carry."""
        taken: list[B] = []
        payloads: list[bytearray] = []
        size_bytes = 0
        for batch in batches:
            payload = self._owner.encode(batch, identity)
            size_bytes += len(payload)
            if taken and size_bytes > self._request_bytes_max:
                break
            taken.append(batch)
            payloads.append(payload)
        partitions = (batch.partition for batch in taken)
        timeout_s = self._cluster.request_timeout_s
        return taken, _produce_request(
            zip(partitions, payloads, strict=True),
            acks=self._acks,
            timeout_s=timeout_s,
            transactional_id=identity.transactional_id,
        )

    # --- answers ---------------------------------------------------------------------------------

    def _finish(self, future: asyncio.Future[ProduceResponse], batches: Sequence[B]) -> None:
        for batch in batches:
            self._owner.answered(batch)
        try:
            answers = _answers_by_partition(future.result())
        except ClientError as error:
            self._refuse_all(batches, error)
            return
        for batch in batches:
            self._settle(batch, answers.get(batch.partition))

    def _settle(self, batch: B, answer: PartitionProduceResponse | None) -> None:
        if answer is None:
            missing = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer leaves it out")
            self._owner.refused(batch, missing, leader_lost=False)
            return
        code = error_code(answer.error_code)
        # A repetition was stored the first time. If we have not repeated it, somebody else writes
        # under our identity, and it is their batch that was stored.
        if code is ErrorCode.NONE or (
            code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and batch.is_repeated
        ):
            self._owner.delivered(batch, answer.base_offset)
            return
        leader_lost = not self._learn_leader(batch.partition, answer)
        self._owner.refused(batch, KafkaError(code, _refusal(answer)), leader_lost=leader_lost)

    def _refuse_all(self, batches: Sequence[B], error: TidemillError) -> None:
        for batch in batches:
            self._owner.refused(batch, error, leader_lost=True)

    def _learn_leader(self, partition: TopicPartition, answer: PartitionProduceResponse) -> bool:
        """Whether a refusal named a leader that was news to us (T28)."""
        hint = answer.current_leader
        return hint is not None and self._cluster.metadata.apply_leader_hint(
            *partition, hint.leader_id, hint.leader_epoch
        )


def may_pass(error: TidemillError) -> bool:
    """Whether the same batch may be accepted later."""
    if isinstance(error, KafkaError):
        return error.code.retriable or error.code in LEADER_MOVED
    return isinstance(error, ClientError)


def _produce_request(
    batches: Iterable[tuple[TopicPartition, bytearray]],
    *,
    acks: int,
    timeout_s: float,
    transactional_id: str | None,
) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for (name, index), payload in batches:
        data = PartitionProduceData(index=index, records=payload)
        topics.setdefault(name, TopicProduceData(name=name)).partition_data.append(data)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=int(timeout_s * 1000),
        topic_data=list(topics.values()),
    )


def _answers_by_partition(
    response: ProduceResponse,
) -> dict[TopicPartition, PartitionProduceResponse]:
    return {
        TopicPartition(topic.name, answer.index): answer
        for topic in response.responses
        for answer in topic.partition_responses
    }


def _refusal(answer: PartitionProduceResponse) -> str:
    """The broker's message, with the first record that it names."""
    parts = [answer.error_message] if answer.error_message else []
    parts += [
        f"record {entry.batch_index}: {entry.batch_index_error_message}"
        for entry in answer.record_errors[:1]
    ]
    return "; ".join(parts)
