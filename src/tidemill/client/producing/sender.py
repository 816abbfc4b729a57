"""The sending loop of a producer: batches from the accumulator to their leaders.

Theory of operation. While a request to a leader is in flight, the records for that leader gather in
the accumulator; the next request takes the head batch of each of its partitions. So batches grow
with the load, without a setting. One request in flight per leader also keeps the batches of a
partition in order, retries included.

A batch whose refusal may pass, or whose connection or answer was lost, stays at the head of its
queue until its delivery deadline. With idempotence the retry carries the same sequence numbers and
the broker drops what it already has; without, a retry may store a batch twice (at least once). When
a batch of an idempotent producer fails for good, its numbers are in doubt: the sender asks for a
new identity, and every partition counts from 0 under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import final

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.accumulator import Accumulator, PartitionQueue
from tidemill.client.producing.batch_router import RETRY_PAUSE_S, BatchRouter, may_pass
from tidemill.client.producing.producer_identity import ANONYMOUS, ProducerIdentity
from tidemill.core.errors import KafkaError, TidemillError
from tidemill.core.ids import TopicPartition

__all__ = ["Sender"]


@final
class Sender:
    """The loop, and the owner of the batches that the router takes to their leaders."""

    def __init__(
        self,
        cluster: ClusterClient,
        accumulator: Accumulator,
        *,
        acks: int,
        idempotent: bool,
        codec: int,
    ) -> None:
        self.wake = asyncio.Event()
        """Starts the next turn of the loop."""
        self.moved = asyncio.Event()
        """Set when a batch has left the accumulator."""
        self.flushing = 0
        """Callers that wait until everything is sent; batches do not linger for them."""
        self.records_acked = 0
        self.records_failed = 0
        self.first_error: TidemillError | None = None
        """The first failure since the producer last set this to None."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._codec = codec
        self._router = BatchRouter[PartitionQueue](
            cluster,
            self,
            acks=acks,
            identity=None if idempotent else ANONYMOUS,
            in_flight_max=1,
            answer_event=self.wake,
        )

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            self.wake.clear()
            self._router.collect()
            await self._send_ready()
            await self._wait_for_work()

    def fail_all(self, error: TidemillError) -> None:
        """Give up every batch that has no outcome yet."""
        for queue in self._accumulator.queues.values():
            while queue.batches:
                self._fail(queue, error)

    async def _send_ready(self) -> None:
        now = asyncio.get_running_loop().time()
        ready = [queue for queue, ready_at in self._sendable() if ready_at <= now]
        if ready:
            await self._router.send(ready)

    async def _wait_for_work(self) -> None:
        times = [time for _, time in self._sendable()]
        try:
            async with asyncio.timeout_at(min(times, default=None)):
                await self.wake.wait()
        except TimeoutError:
            return

    def _sendable(self) -> Iterable[tuple[PartitionQueue, float]]:
        """The queues whose leader has no request in flight, and when their head may go."""
        for queue in self._accumulator.queues.values():
            ready_at = self._accumulator.ready_at(queue, flushing=self.flushing > 0)
            if ready_at is not None and not self._router.is_busy(queue.partition):
                yield queue, ready_at

    # --- what the router calls -------------------------------------------------------------------

    def encode(self, queue: PartitionQueue, identity: ProducerIdentity) -> bytearray:
        return queue.encode_head(identity, self._codec)

    def sent(self, queue: PartitionQueue) -> None:
        queue.in_flight = True
        queue.batches[0].times_sent += 1

    def answered(self, queue: PartitionQueue) -> None:
        queue.in_flight = False

    def delivered(self, queue: PartitionQueue, base_offset: int) -> None:
        batch = self._accumulator.pop_head(queue)
        self.records_acked += len(batch.records)
        self.moved.set()
        if not batch.done.done():
            batch.done.set_result(base_offset)

    def refused(self, queue: PartitionQueue, error: TidemillError, *, leader_lost: bool) -> None:
        if leader_lost:
            self._cluster.metadata.forget_leader(*queue.partition)
        now = asyncio.get_running_loop().time()
        if may_pass(error) and now < queue.batches[0].deadline:
            queue.not_before = now + RETRY_PAUSE_S
        else:
            self._fail(queue, _with_partition(error, queue.partition))

    def _fail(self, queue: PartitionQueue, error: TidemillError) -> None:
        batch = self._accumulator.pop_head(queue)
        self.records_failed += len(batch.records)
        self.first_error = self.first_error or error
        self.moved.set()
        if self._router.identity is not ANONYMOUS:
            self._router.identity = None
        if not batch.done.done():
            batch.done.set_exception(error)
            batch.done.exception()  # marks it as seen: `flush` raises `first_error`


def _with_partition(error: TidemillError, partition: TopicPartition) -> TidemillError:
    if not isinstance(error, KafkaError):
        return error
    detail = f"{partition}: {error.detail}" if error.detail else str(partition)
    return KafkaError(error.code, detail)
