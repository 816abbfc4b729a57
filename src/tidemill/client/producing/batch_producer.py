"""Sends batches that are encoded already, several at a time, each partition's in order.

Theory of operation. There is no task: whoever produces calls `send`, which takes batches, sees what
was answered, sends what may go and returns; it waits only while too much is on its way. `flush`
does the same until nothing is. So the work of encoding and the broker's work overlap without a
thread, and a caller that owns no running event loop can step through one.

A *lane* is one partition's queue of unacknowledged batches, oldest first. Requests to a leader are
answered in order (T8), so a lane may have several batches in flight, one per request. Its batches
are numbered; the broker takes them in the order of their numbers only, recognises a repetition of
the last five (T29), and accepts any number from a producer it does not know. From that follows:

    open lane         the broker has acknowledged a batch of ours: up to `in_flight_max`
    cautious lane     at first, and after any refusal: one in flight, the oldest, until it is taken

When a batch is refused, those in flight behind it are refused as out of order. They wait, all of
them, until every answer is there, and go again from the oldest on with the numbers they had. Out of
order as the answer to the oldest means that the log lost something: that is final.

The first final failure ends the producer: everything raises it. Without idempotence (acks 0 or 1)
every lane stays cautious, and a retry may store a batch twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, final

from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError, WouldBlock, error_code
from tidemill.client.producing.accumulator import ANONYMOUS, ProducerIdentity
from tidemill.client.producing.encoded_batch import EncodedBatch, halves
from tidemill.client.producing.produce_requests import (
    ALL_REPLICAS,
    NO_ANSWER,
    PRODUCE_VERSION_MAX,
    answers_by_partition,
    ask_identity,
    learn_leader,
    may_pass,
    produce_request,
)
from tidemill.core.errors import ErrorCode, KafkaError, TidemillError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB
from tidemill.core.loop.pacing import next_turn
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import HEADER_BYTES, NO_SEQUENCE
from tidemill.wire.generated.produce import PartitionProduceResponse, ProduceResponse

__all__ = ["BatchProducer", "BatchRefused", "Delivered"]

_SEQUENCES = 1 << 31
_RETRY_PAUSE_S = 0.1
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_TAKEN: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})


@final
class BatchRefused(TidemillError):
    """A batch that will not be delivered: where it was to go, and why not."""

    def __init__(self, partition: TopicPartition, reason: str) -> None:
        super().__init__(
            f"cannot write to topic {partition.topic}, partition {partition.partition}: {reason}"
        )
        self.partition = partition


@final
@dataclass(slots=True)
class Delivered:
    """What a partition has acknowledged."""

    records: int = 0
    bytes: int = 0


@final
@dataclass(slots=True, eq=False)
class _Sendable:
    """A batch in its lane."""

    batch: EncodedBatch
    deadline: float
    is_sealed: bool = False
    in_flight: bool = False


@final
@dataclass(slots=True, eq=False)
class _Lane:
    """The unacknowledged batches of one partition, oldest first."""

    partition: TopicPartition
    waiting: deque[_Sendable] = field(default_factory=deque)
    in_flight: int = 0
    is_open: bool = False
    not_before: float = 0.0
    next_sequence: int = 0

    def next_batch(self, now: float, in_flight_max: int) -> _Sendable | None:
        """What may be sent now; in flight are always the oldest ones."""
        limit = in_flight_max if self.is_open else 1
        if self.in_flight >= limit or now < self.not_before or self.in_flight == len(self.waiting):
            return None
        return self.waiting[self.in_flight]

    def take_sequences(self, count: int) -> int:
        base = self.next_sequence
        self.next_sequence = (base + count) % _SEQUENCES
        return base


_Exchange = tuple[asyncio.Future[ProduceResponse], list[tuple[_Lane, _Sendable]]]


@final
class BatchProducer:
    """Lives as long as its numbers are good: until the first failure, or for many uses."""

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        acks: int = ALL_REPLICAS,
        identity: ProducerIdentity | None = None,
        in_flight_max: int = 5,
        buffer_bytes_max: int = 32 * MIB,
        request_bytes_max: int = 16 * MIB,
        delivery_timeout_s: float = 120.0,
    ) -> None:
        self.batch_bytes_max = request_bytes_max
        """How large batches may be, as far as brokers have said."""
        self._cluster = cluster
        self._acks = acks
        self._in_flight_max = in_flight_max
        self._buffer_bytes_max = buffer_bytes_max
        self._request_bytes_max = request_bytes_max
        self._delivery_timeout_s = delivery_timeout_s
        self._identity = identity if acks == ALL_REPLICAS else ANONYMOUS
        """None: to be asked for before the first batch is sealed."""
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._exchanges: dict[int, deque[_Exchange]] = {}
        """By leader, in the order of sending; at most `in_flight_max` each."""
        self._answered = asyncio.Event()
        self._buffered_bytes = 0
        self._delivered: dict[TopicPartition, Delivered] = {}
        self._failure: TidemillError | None = None

    async def send(self, batches: Iterable[EncodedBatch]) -> None:
        """Take batches; waits while more than the buffer holds is on its way.

        Raises BatchRefused for the first batch that cannot be delivered, this one or another.
        """
        deadline = _now() + self._delivery_timeout_s
        for batch in batches:
            lane = self._lanes.get(batch.partition)
            if lane is None:
                lane = self._lanes[batch.partition] = _Lane(batch.partition)
            lane.waiting.append(_Sendable(batch, deadline))
            self._buffered_bytes += len(batch.buffer)
        await self._step()
        while self._buffered_bytes > self._buffer_bytes_max:
            await self._wait_for_answer()
            await self._step()

    async def flush(self) -> None:
        """Wait until everything is acknowledged. Raises BatchRefused."""
        await self._step()
        while self._buffered_bytes:
            await self._wait_for_answer()
            await self._step()

    def take_delivered(self) -> dict[TopicPartition, Delivered]:
        """What was acknowledged since the last call."""
        delivered, self._delivered = self._delivered, {}
        return delivered

    async def _step(self) -> None:
        """See what was answered, send what may go, and let the loop move bytes once."""
        self._collect()
        self._raise_failure()
        await self._dispatch()
        self._raise_failure()
        await next_turn()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait_for_answer(self) -> None:
        pauses = [lane.not_before for lane in self._lanes.values() if lane.waiting]
        now = _now()
        wake_at = min((pause for pause in pauses if pause > now), default=None)
        if wake_at is None and not self._exchanges:
            return
        try:
            async with asyncio.timeout_at(wake_at):
                await self._answered.wait()
        except TimeoutError:
            return

    # --- sending ---------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        while ready := self._ready():
            try:
                await self._learn(ready)
            except (ClientError, KafkaError) as error:
                for lane in ready:
                    self._retry_later(lane, lane.waiting[lane.in_flight], error)
                return
            is_sent = False
            for broker_id, lanes in self._by_leader(ready).items():
                is_sent |= await self._send_to(broker_id, lanes)
            if not is_sent:
                return

    def _ready(self) -> list[_Lane]:
        now = _now()
        in_flight_max = self._in_flight_max if self._acks == ALL_REPLICAS else 1
        return [
            lane for lane in self._lanes.values() if lane.next_batch(now, in_flight_max) is not None
        ]

    async def _learn(self, ready: list[_Lane]) -> None:
        """Find out what sending needs: who leads, and who we are."""
        metadata = self._cluster.metadata
        lost = {n.partition.topic for n in ready if metadata.leader(*n.partition) is None}
        if lost:
            await self._cluster.refresh(lost)
        if self._identity is None:
            self._identity = await ask_identity(self._cluster)

    def _by_leader(self, ready: list[_Lane]) -> dict[int, list[_Lane]]:
        metadata = self._cluster.metadata
        leaders: dict[int, list[_Lane]] = {}
        for lane in ready:
            leader = metadata.leader(*lane.partition)
            if leader is not None:
                leaders.setdefault(leader.broker_id, []).append(lane)
                continue
            code = metadata.errors.get(lane.partition.topic, ErrorCode.LEADER_NOT_AVAILABLE)
            self._retry_later(lane, lane.waiting[lane.in_flight], KafkaError(code))
        return leaders

    async def _send_to(self, broker_id: int, lanes: list[_Lane]) -> bool:
        """One request with the next batch of each lane; whether the broker had room for it."""
        exchanges = self._exchanges.get(broker_id, ())
        if len(exchanges) >= self._in_flight_max:
            return False
        taken = self._take(lanes)
        try:
            connection = await self._cluster.connection(broker_id)
            return await self._exchange(connection, broker_id, taken)
        except WouldBlock:
            return False
        except (ClientError, KafkaError) as error:
            for lane, sendable in taken:
                self._cluster.metadata.forget_leader(*lane.partition)
                self._retry_later(lane, sendable, error)
            return False

    def _take(self, lanes: list[_Lane]) -> list[tuple[_Lane, _Sendable]]:
        """The next batch of each lane, sealed, as many as one request may carry."""
        taken: list[tuple[_Lane, _Sendable]] = []
        size_bytes = 0
        for lane in lanes:
            sendable = lane.waiting[lane.in_flight]
            size_bytes += len(sendable.batch.buffer)
            if taken and size_bytes > self._request_bytes_max:
                break
            self._seal(lane, sendable)
            taken.append((lane, sendable))
        return taken

    def _seal(self, lane: _Lane, sendable: _Sendable) -> None:
        if sendable.is_sealed:
            return
        identity = self._identity
        assert identity is not None
        count = sendable.batch.record_count
        sequence = lane.take_sequences(count) if identity.idempotent else NO_SEQUENCE
        sendable.batch.seal(identity, sequence)
        sendable.is_sealed = True

    async def _exchange(
        self, connection: BrokerConnection, broker_id: int, taken: list[tuple[_Lane, _Sendable]]
    ) -> bool:
        timeout_s = self._cluster.request_timeout_s
        batches = [(lane.partition, sendable.batch.buffer) for lane, sendable in taken]
        request = produce_request(batches, acks=self._acks, timeout_s=timeout_s)
        version = min(connection.version_of(ApiKey.PRODUCE), PRODUCE_VERSION_MAX)
        if self._acks == NO_ANSWER:
            await connection.send_unanswered(request, version=version)
            for lane, sendable in taken:
                self._deliver(lane, sendable)
            return True
        future = connection.request_nowait(
            request, ProduceResponse, version=version, timeout_s=timeout_s
        )
        for lane, sendable in taken:
            sendable.in_flight = True
            lane.in_flight += 1
        future.add_done_callback(lambda _: self._answered.set())
        self._exchanges.setdefault(broker_id, deque()).append((future, taken))
        return True

    # --- what became of it -----------------------------------------------------------------------

    def _collect(self) -> None:
        self._answered.clear()
        for broker_id, exchanges in list(self._exchanges.items()):
            while exchanges and exchanges[0][0].done():
                self._finish(*exchanges.popleft())
            if not exchanges:
                del self._exchanges[broker_id]

    def _finish(
        self, future: asyncio.Future[ProduceResponse], taken: list[tuple[_Lane, _Sendable]]
    ) -> None:
        for lane, sendable in taken:
            sendable.in_flight = False
            lane.in_flight -= 1
        try:
            answers = answers_by_partition(future.result())
        except ClientError as error:
            for lane, sendable in taken:
                self._cluster.metadata.forget_leader(*lane.partition)
                self._retry_later(lane, sendable, error)
            return
        for lane, sendable in taken:
            self._settle(lane, sendable, answers.get(lane.partition))

    def _settle(
        self, lane: _Lane, sendable: _Sendable, answer: PartitionProduceResponse | None
    ) -> None:
        if answer is None:
            self._fail(lane, sendable, "the broker did not say what became of it")
            return
        code = error_code(answer.error_code)
        if code in _TAKEN:
            self._deliver(lane, sendable)
            return
        is_oldest = lane.waiting[0] is sendable
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_oldest:
            self._wait_behind(lane)
            return
        if code in _TOO_LARGE and sendable.batch.record_count > 1:
            self._split(lane, sendable)
            return
        if not learn_leader(self._cluster.metadata, lane.partition, answer):
            self._cluster.metadata.forget_leader(*lane.partition)
        self._retry_later(lane, sendable, KafkaError(code, _refusal(answer)))

    def _deliver(self, lane: _Lane, sendable: _Sendable) -> None:
        lane.waiting.remove(sendable)
        lane.is_open = self._acks == ALL_REPLICAS
        delivered = self._delivered.setdefault(lane.partition, Delivered())
        delivered.records += sendable.batch.record_count
        delivered.bytes += len(sendable.batch.buffer)
        self._buffered_bytes -= len(sendable.batch.buffer)

    def _wait_behind(self, lane: _Lane) -> None:
        """Refused because one before it was: nothing of this lane goes before that one is taken."""
        lane.is_open = False

    def _retry_later(self, lane: _Lane, sendable: _Sendable, error: TidemillError) -> None:
        now = _now()
        if not may_pass(error):
            self._fail(lane, sendable, str(error))
        elif now >= sendable.deadline:
            timeout_s = self._delivery_timeout_s
            self._fail(lane, sendable, f"not delivered within {timeout_s:g} s, at last: {error}")
        else:
            lane.is_open = False
            lane.not_before = now + _RETRY_PAUSE_S

    def _split(self, lane: _Lane, sendable: _Sendable) -> None:
        """The broker takes smaller batches: two in its place, under the same numbers."""
        size_bytes = len(sendable.batch.buffer)
        self.batch_bytes_max = min(self.batch_bytes_max, max(size_bytes // 2, HEADER_BYTES))
        self._buffered_bytes -= size_bytes
        at = lane.waiting.index(sendable)
        del lane.waiting[at]
        for half in reversed(halves(sendable.batch)):
            lane.waiting.insert(at, _Sendable(half, sendable.deadline, is_sealed=True))
            self._buffered_bytes += len(half.buffer)
        lane.is_open = False

    def _fail(self, lane: _Lane, sendable: _Sendable, reason: str) -> None:
        batch = sendable.batch
        many = f"{batch.record_count} records" if batch.record_count > 1 else "one record"
        what = f"{reason} (a batch of {len(batch.buffer)} bytes with {many})"
        self._failure = self._failure or BatchRefused(lane.partition, what)


def _refusal(answer: PartitionProduceResponse) -> str:
    """In the broker's words, with the records that it names."""
    parts = [answer.error_message] if answer.error_message else []
    parts += [
        f"record {entry.batch_index}: {entry.batch_index_error_message}"
        for entry in answer.record_errors[:1]
    ]
    return "; ".join(parts)


def _now() -> float:
    return asyncio.get_running_loop().time()
