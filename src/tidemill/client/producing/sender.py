"""Takes batches from the accumulator to their leaders, and learns what became of them.

Theory of operation. One loop. While a request to a leader is in flight, everything else for that
leader gathers; the next request takes the head batch of each of its partitions. The busier the
producer, the larger the batches, without a setting. With one request per leader the order within a
partition needs no more thought, retries included.

A refusal that may pass, a lost connection or a missing answer leaves the batch at the head of its
queue until its delivery deadline. With idempotence the retry carries the same sequence numbers, and
the broker drops what it has already; without, a retry may store a batch twice (at least once). When
a batch of an idempotent producer has failed for good, its numbers are in doubt: the sender asks for
a new identity, and every partition counts from 0 again under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, final

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError, error_code
from tidemill.client.producing.accumulator import (
    ANONYMOUS,
    Accumulator,
    PartitionQueue,
    ProducerIdentity,
)
from tidemill.client.producing.produce_requests import (
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
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)

__all__ = ["NO_OFFSET", "Sender"]

NO_OFFSET: Final = -1

_REQUEST_BYTES_MAX = 16 * MIB
_RETRY_PAUSE_S = 0.1

_Exchange = tuple[asyncio.Future[ProduceResponse], list[PartitionQueue]]


@final
class Sender:
    """The producer's loop. `wake` starts a turn; `moved` is set whenever a batch has left."""

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
        self.moved = asyncio.Event()
        self.flushing = 0
        """How many are waiting for everything to be sent; linger does not count meanwhile."""
        self.records_acked = 0
        self.records_failed = 0
        self.first_error: TidemillError | None = None
        """The first failure since whoever reads this set it back to None."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._acks = acks
        self._codec = codec
        self._identity: ProducerIdentity | None = None if idempotent else ANONYMOUS
        """None: to be asked for before anything is encoded."""
        self._in_flight: dict[int, _Exchange] = {}
        """By leader; at most one request each."""

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            self.wake.clear()
            self._collect()
            await self._send_ready()
            await self._wait_for_work()

    def fail_all(self, error: TidemillError) -> None:
        """Give up on everything that is still on its way."""
        for queue in self._accumulator.queues.values():
            while queue.batches:
                self._fail(queue, error)

    # --- what to send, and when ------------------------------------------------------------------

    async def _wait_for_work(self) -> None:
        times = [time for _, time in self._sendable()]
        try:
            async with asyncio.timeout_at(min(times, default=None)):
                await self.wake.wait()
        except TimeoutError:
            return

    def _sendable(self) -> Iterable[tuple[PartitionQueue, float]]:
        """The queues whose leader is free, and when their head may go."""
        for queue in self._accumulator.queues.values():
            ready_at = self._accumulator.ready_at(queue, flushing=self.flushing > 0)
            leader = self._cluster.metadata.leader(*queue.partition)
            is_busy = leader is not None and leader.broker_id in self._in_flight
            if ready_at is not None and not is_busy:
                yield queue, ready_at

    async def _send_ready(self) -> None:
        now = asyncio.get_running_loop().time()
        ready = [queue for queue, ready_at in self._sendable() if ready_at <= now]
        if not ready:
            return
        try:
            await self._learn(ready)
        except (ClientError, KafkaError) as error:
            self._retry_later(ready, error)
            return
        for broker_id, queues in self._by_leader(ready).items():
            await self._send_to(broker_id, queues)

    async def _learn(self, ready: list[PartitionQueue]) -> None:
        """Find out what sending needs: who leads, and who we are."""
        metadata = self._cluster.metadata
        if lost := {q.partition.topic for q in ready if metadata.leader(*q.partition) is None}:
            await self._cluster.refresh(lost)
        if self._identity is None:
            self._identity = await ask_identity(self._cluster)

    def _by_leader(self, ready: list[PartitionQueue]) -> dict[int, list[PartitionQueue]]:
        """Who can be sent what now; what was learnt may have made a busy broker the leader."""
        metadata = self._cluster.metadata
        leaders: dict[int, list[PartitionQueue]] = {}
        for queue in ready:
            leader = metadata.leader(*queue.partition)
            if leader is None:
                code = metadata.errors.get(queue.partition.topic, ErrorCode.LEADER_NOT_AVAILABLE)
                self._retry_later([queue], KafkaError(code, str(queue.partition)))
            elif leader.broker_id not in self._in_flight:
                leaders.setdefault(leader.broker_id, []).append(queue)
        return leaders

    async def _send_to(self, broker_id: int, queues: list[PartitionQueue]) -> None:
        request, taken = self._request(queues)
        try:
            connection = await self._cluster.connection(broker_id)
            version = min(connection.version_of(ApiKey.PRODUCE), PRODUCE_VERSION_MAX)
            if self._acks == NO_ANSWER:
                await connection.send_unanswered(request, version=version)
                for queue in taken:
                    self._deliver(queue, NO_OFFSET)
                return
            timeout_s = self._cluster.request_timeout_s
            future = connection.request_nowait(
                request, ProduceResponse, version=version, timeout_s=timeout_s
            )
        except (ClientError, KafkaError) as error:
            self._retry_later(taken, error, leader_lost=True)
            return
        for queue in taken:
            queue.in_flight = True
        assert broker_id not in self._in_flight
        future.add_done_callback(lambda _: self.wake.set())
        self._in_flight[broker_id] = (future, taken)

    def _request(self, queues: list[PartitionQueue]) -> tuple[ProduceRequest, list[PartitionQueue]]:
        """The head batches of some queues, as many as one request may carry."""
        assert self._identity is not None
        taken: list[PartitionQueue] = []
        batches: list[tuple[TopicPartition, bytearray]] = []
        size_bytes = 0
        for queue in queues:
            payload = queue.encode_head(self._identity, self._codec)
            if taken and size_bytes + len(payload) > _REQUEST_BYTES_MAX:
                break
            size_bytes += len(payload)
            taken.append(queue)
            batches.append((queue.partition, payload))
        timeout_s = self._cluster.request_timeout_s
        request = produce_request(batches, acks=self._acks, timeout_s=timeout_s)
        return request, taken

    # --- what became of it -----------------------------------------------------------------------

    def _collect(self) -> None:
        for broker_id, (future, queues) in list(self._in_flight.items()):
            if not future.done():
                continue
            del self._in_flight[broker_id]
            try:
                answers = answers_by_partition(future.result())
            except ClientError as error:
                self._retry_later(queues, error, leader_lost=True)
                continue
            for queue in queues:
                self._settle(queue, answers.get(queue.partition))

    def _settle(self, queue: PartitionQueue, answer: PartitionProduceResponse | None) -> None:
        if answer is None:
            detail = f"{queue.partition}: the broker did not say what became of it"
            self._fail(queue, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail))
            return
        code = error_code(answer.error_code)
        if code in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
            self._deliver(queue, answer.base_offset)
            return
        reason = f": {answer.error_message}" if answer.error_message else ""
        knows_leader = learn_leader(self._cluster.metadata, queue.partition, answer)
        refusal = KafkaError(code, f"{queue.partition}{reason}")
        self._retry_later([queue], refusal, leader_lost=not knows_leader)

    def _deliver(self, queue: PartitionQueue, base_offset: int) -> None:
        batch = self._accumulator.pop_head(queue)
        self.records_acked += len(batch.records)
        self.moved.set()
        if not batch.done.done():
            batch.done.set_result(base_offset)

    def _retry_later(
        self, queues: list[PartitionQueue], error: TidemillError, *, leader_lost: bool = False
    ) -> None:
        now = asyncio.get_running_loop().time()
        for queue in queues:
            queue.in_flight = False
            if leader_lost:
                self._cluster.metadata.forget_leader(*queue.partition)
            if may_pass(error) and now < queue.batches[0].deadline:
                queue.not_before = now + _RETRY_PAUSE_S
            else:
                self._fail(queue, error)

    def _fail(self, queue: PartitionQueue, error: TidemillError) -> None:
        batch = self._accumulator.pop_head(queue)
        self.records_failed += len(batch.records)
        self.first_error = self.first_error or error
        self.moved.set()
        if self._identity is not ANONYMOUS:
            self._identity = None
        if not batch.done.done():
            batch.done.set_exception(error)
            batch.done.exception()  # nobody has to wait for it: `first_error` tells the flusher
