"""Sends records: `send` gathers them into batches, the `Sender` sends the batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self, final

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ConnectionClosed
from tidemill.client.producing.accumulator import Accumulator
from tidemill.client.producing.batch_router import ALL_REPLICAS, NO_OFFSET
from tidemill.client.producing.partitioners import KeyPartitioner, Partitioner, RoundRobin
from tidemill.client.producing.sender import Sender
from tidemill.core.clock import Clock
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.wire import compression
from tidemill.wire.records import Header, Record

__all__ = ["Producer", "RecordDelivery"]


@final
class RecordDelivery:
    """Tells whether one record was stored, and where."""

    __slots__ = ("_batch_done", "_index")

    def __init__(self, batch_done: asyncio.Future[int], index: int) -> None:
        self._batch_done = batch_done
        self._index = index

    async def offset(self) -> int:
        """Wait for the acknowledgement; the record's offset, -1 with acks=0. Raises on failure."""
        base = await asyncio.shield(self._batch_done)
        return base + self._index if base >= 0 else NO_OFFSET


@final
class Producer:
    """Use as `async with`: the end of the block flushes, unless an exception ends it.

    `buffer_bytes_max` bounds the memory: `send` waits while that many bytes are unacknowledged.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        clock: Clock,
        *,
        acks: int = ALL_REPLICAS,
        idempotent: bool = False,
        codec: int = compression.NONE,
        partitioner: Partitioner | None = None,
        linger_s: float = 0.005,
        batch_bytes_max: int = 1_000_000,
        buffer_bytes_max: int = 32 * MIB,
        delivery_timeout_s: float = 30.0,
    ) -> None:
        if idempotent and acks != ALL_REPLICAS:
            raise ValueError("an idempotent producer needs acks=all")
        self._cluster = cluster
        self._clock = clock
        self._partitioner = partitioner or KeyPartitioner(RoundRobin())
        self._buffer_bytes_max = buffer_bytes_max
        self._accumulator = Accumulator(
            batch_bytes_max=batch_bytes_max,
            linger_s=linger_s,
            delivery_timeout_s=delivery_timeout_s,
        )
        self._sender = Sender(
            cluster, self._accumulator, acks=acks, idempotent=idempotent, codec=codec
        )
        self._broken: BaseException | None = None
        """Why the sending loop died; always a bug."""
        self._supervisor = Supervisor(self._loop_ended)

    async def __aenter__(self) -> Self:
        self._supervisor.spawn("producer", self._sender.run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self._supervisor.stop()
            self._sender.fail_all(ConnectionClosed("the producer was closed"))

    @property
    def records_acked(self) -> int:
        return self._sender.records_acked

    @property
    def records_failed(self) -> int:
        return self._sender.records_failed

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordDelivery:
        """Queue a record; waits only while the buffer is full or the topic is not known yet."""
        while self._accumulator.buffered_bytes >= self._buffer_bytes_max:
            self._sender.moved.clear()
            self._sender.wake.set()
            await self._sender.moved.wait()
        if self._broken is not None:
            raise ConnectionClosed("the producer does not run") from self._broken
        record = Record(
            value,
            key,
            headers=headers,
            timestamp=self._clock.wall_ms() if timestamp_ms is None else timestamp_ms,
        )
        target = TopicPartition(topic, await self._partition(topic, key, partition))
        now = asyncio.get_running_loop().time()
        batch, index = self._accumulator.add(target, record, now)
        if index == 0:
            self._sender.wake.set()
        return RecordDelivery(batch.done, index)

    async def flush(self) -> None:
        """Send everything now and wait for it; raises the first failure since the last flush."""
        waiting = [b.done for q in self._accumulator.queues.values() for b in q.batches]
        self._sender.flushing += 1
        self._sender.wake.set()
        try:
            if waiting:
                await asyncio.wait(waiting)
        finally:
            self._sender.flushing -= 1
        error, self._sender.first_error = self._sender.first_error, None
        if error is not None:
            raise error

    async def _partition(self, topic: str, key: bytes | None, asked: int | None) -> int:
        info = self._cluster.metadata.topics.get(topic)
        if info is None:
            info = await self._cluster.topic(topic, auto_create=True)
        if asked is None:
            return self._partitioner.partition(key, len(info.partitions))
        if asked not in info.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{asked}")
        return asked

    def _loop_ended(self, name: str, error: BaseException) -> None:
        self._broken = error
        self._sender.fail_all(ConnectionClosed(f"the sending loop ended: {error!r}"))
