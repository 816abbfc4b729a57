"""Sends batches that are already encoded, several at a time, each partition's in order.

Theory of operation. There is no task. The caller's `send` takes batches, collects answers, sends
what may go and returns; it waits only while too much is unacknowledged. `flush` does the same until
everything is acknowledged. So encoding and the broker's work overlap without a thread, and a caller
without a running event loop can step through one.

A *lane* is one partition's queue of unacknowledged batches, oldest first. Requests to a leader are
answered in order (T8), so a lane may have several batches in flight, one per request. Its batches
are numbered; the broker takes them only in the order of their numbers, recognises a repetition of
the last five (T29), and accepts any number from a producer that it does not know. Hence two states:

    open lane         the broker has acknowledged a batch of ours: up to `in_flight_max` in flight
    cautious lane     at first, and after any refusal: one in flight, the oldest, until it is taken

When a batch is refused, the ones in flight behind it are refused as out of order. All of them wait
until every answer is there, and go again from the oldest on with the numbers they had. Out of order
as the answer to the oldest means that the log lost something: that is final.

The first final failure ends the producer: every call raises it. Without idempotence (acks 0 or 1)
every lane stays cautious, and a retry may store a batch twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, final

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import WouldBlock
from tidemill.client.producing.batch_router import (
    ALL_REPLICAS,
    REQUEST_BYTES_MAX,
    RETRY_PAUSE_S,
    BatchRouter,
    Enlist,
    may_pass,
)
from tidemill.client.producing.encoded_batch import EncodedBatch, halves
from tidemill.client.producing.producer_identity import (
    ANONYMOUS,
    ProducerIdentity,
    sequence_after,
)
from tidemill.core.errors import ErrorCode, KafkaError, TidemillError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB
from tidemill.core.loop.pacing import next_turn
from tidemill.wire.batch import HEADER_BYTES, NO_SEQUENCE

__all__ = ["BatchProducer", "BatchRefused", "Delivered"]

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


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
class _LaneBatch:
    """A batch in its lane."""

    lane: _Lane
    batch: EncodedBatch
    deadline: float
    is_sealed: bool = False
    times_sent: int = 0

    @property
    def is_repeated(self) -> bool:
        return self.times_sent > 1

    @property
    def partition(self) -> TopicPartition:
        return self.lane.partition


@final
@dataclass(slots=True, eq=False)
class _Lane:
    """The unacknowledged batches of one partition, oldest first."""

    partition: TopicPartition
    waiting: deque[_LaneBatch] = field(default_factory=deque)
    in_flight: int = 0
    """How many of the oldest have been sent and not been answered."""
    is_open: bool = False
    not_before: float = 0.0
    next_sequence: int = 0

    def try_next(self, now: float, in_flight_max: int) -> _LaneBatch | None:
        """The batch that may be sent now."""
        limit = in_flight_max if self.is_open else 1
        if self.in_flight >= limit or now < self.not_before or self.in_flight == len(self.waiting):
            return None
        return self.waiting[self.in_flight]

    def take_sequences(self, count: int) -> int:
        base = self.next_sequence
        self.next_sequence = sequence_after(base, count)
        return base


@final
class BatchProducer:
    """Usable until the first failure; one instance may serve many uses."""

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        acks: int = ALL_REPLICAS,
        identity: ProducerIdentity | None = None,
        in_flight_max: int = 5,
        buffer_bytes_max: int = 32 * MIB,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        delivery_timeout_s: float = 120.0,
        enlist: Enlist | None = None,
    ) -> None:
        self.batch_bytes_max = request_bytes_max
        """How large batches may be, as far as brokers have said."""
        self._cluster = cluster
        self._is_idempotent = acks == ALL_REPLICAS
        self._lane_in_flight_max = in_flight_max if self._is_idempotent else 1
        self._buffer_bytes_max = buffer_bytes_max
        self._delivery_timeout_s = delivery_timeout_s
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._answer_event = asyncio.Event()
        self._router = BatchRouter[_LaneBatch](
            cluster,
            self,
            acks=acks,
            identity=identity if self._is_idempotent else ANONYMOUS,
            in_flight_max=in_flight_max,
            request_bytes_max=request_bytes_max,
            answer_event=self._answer_event,
            enlist=enlist,
        )
        self._buffered_bytes = 0
        self._delivered: dict[TopicPartition, Delivered] = {}
        self._failure: TidemillError | None = None

    async def send(self, batches: Iterable[EncodedBatch]) -> None:
        """Take batches; waits while more is unacknowledged than the buffer holds.

        Raises BatchRefused for the first batch that cannot be delivered, this one or another.
        """
        deadline = _now() + self._delivery_timeout_s
        for batch in batches:
            lane = self._lanes.get(batch.partition)
            if lane is None:
                lane = self._lanes[batch.partition] = _Lane(batch.partition)
            lane.waiting.append(_LaneBatch(lane, batch, deadline))
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
        """Collect answers, send what may go, and let the loop move bytes once."""
        self._answer_event.clear()
        self._router.collect()
        self._raise_failure()
        while ready := self._ready():
            if not await self._router.send(ready):
                break
        self._raise_failure()
        await next_turn()

    def _ready(self) -> list[_LaneBatch]:
        now, in_flight_max = _now(), self._lane_in_flight_max
        batches = (lane.try_next(now, in_flight_max) for lane in self._lanes.values())
        return [batch for batch in batches if batch is not None]

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait_for_answer(self) -> None:
        pauses = [lane.not_before for lane in self._lanes.values() if lane.waiting]
        now = _now()
        wake_at = min((pause for pause in pauses if pause > now), default=None)
        if wake_at is None and self._router.is_idle:
            return
        try:
            async with asyncio.timeout_at(wake_at):
                await self._answer_event.wait()
        except TimeoutError:
            return

    # --- what the router calls -------------------------------------------------------------------

    def encode(self, queued: _LaneBatch, identity: ProducerIdentity) -> bytearray:
        if not queued.is_sealed:
            count = queued.batch.record_count
            sequence = queued.lane.take_sequences(count) if identity.idempotent else NO_SEQUENCE
            queued.batch.seal(identity, sequence)
            queued.is_sealed = True
        return queued.batch.buffer

    def sent(self, queued: _LaneBatch) -> None:
        queued.lane.in_flight += 1
        queued.times_sent += 1

    def answered(self, queued: _LaneBatch) -> None:
        queued.lane.in_flight -= 1

    def delivered(self, queued: _LaneBatch, _base_offset: int) -> None:
        queued.lane.waiting.remove(queued)
        queued.lane.is_open = self._is_idempotent
        size_bytes = len(queued.batch.buffer)
        delivered = self._delivered.setdefault(queued.partition, Delivered())
        delivered.records += queued.batch.record_count
        delivered.bytes += size_bytes
        self._buffered_bytes -= size_bytes

    def refused(self, queued: _LaneBatch, error: TidemillError, *, leader_lost: bool) -> None:
        if isinstance(error, WouldBlock):
            return  # it was not sent, and goes when the connection has room
        queued.lane.is_open = False
        code = error.code if isinstance(error, KafkaError) else ErrorCode.NONE
        is_oldest = queued.lane.waiting[0] is queued
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_oldest:
            return  # one before it was refused, and goes first
        if code in _TOO_LARGE and queued.batch.record_count > 1:
            self._split(queued)
            return
        if leader_lost:
            self._cluster.metadata.forget_leader(*queued.partition)
        self._retry_later(queued, error)

    def _retry_later(self, queued: _LaneBatch, error: TidemillError) -> None:
        now = _now()
        if not may_pass(error):
            self._fail(queued, str(error))
        elif now >= queued.deadline:
            timeout_s = self._delivery_timeout_s
            self._fail(queued, f"not delivered within {timeout_s:g} s, at last: {error}")
        else:
            queued.lane.not_before = now + RETRY_PAUSE_S

    def _split(self, queued: _LaneBatch) -> None:
        """The broker takes smaller batches: replace this one by two under the same numbers."""
        lane, size_bytes = queued.lane, len(queued.batch.buffer)
        self.batch_bytes_max = min(self.batch_bytes_max, max(size_bytes // 2, HEADER_BYTES))
        self._buffered_bytes -= size_bytes
        at = lane.waiting.index(queued)
        del lane.waiting[at]
        for half in reversed(halves(queued.batch)):
            lane.waiting.insert(at, _LaneBatch(lane, half, queued.deadline, is_sealed=True))
            self._buffered_bytes += len(half.buffer)

    def _fail(self, queued: _LaneBatch, reason: str) -> None:
        batch = queued.batch
        many = f"{batch.record_count} records" if batch.record_count > 1 else "one record"
        what = f"{reason} (a batch of {len(batch.buffer)} bytes with {many})"
        self._failure = self._failure or BatchRefused(queued.partition, what)


def _now() -> float:
    return asyncio.get_running_loop().time()
