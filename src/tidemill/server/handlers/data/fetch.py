"""Fetch (1), versions 4..18.

HOT PATH: once per fetch and per partition in it.

v4 isolation level; v5 log start offset; v7 sessions; v9 leader epochs; v10 zstd; v11 rack; v12
flexible and diverging epochs; v13 topic ids; v15-v18 fields of followers.

Whole stored batches leave as views of mapped segments where their pages are in memory (T31). A
fetch that finds fewer than `min_bytes` is parked until its partitions have more or its time is up.
Bytes that are not in memory are read in a thread before the answer leaves. A client that names
thousands of partitions is served in turns and does not park; it is told to wait instead (S11).

Left out: reading from a near replica (the preferred replica is always the leader), aborted
transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import final

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.limits import KIB
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.pacing import next_turn
from tidemill.core.loop.timers import Timer
from tidemill.replication.partition import NO_EPOCH, Partition
from tidemill.server.fetching.fetch_sessions import FetchPlan, FetchTarget
from tidemill.server.request.authorizer import Operation, cluster, topic
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.server.request.leader_hints import leader_endpoints, leader_hint
from tidemill.server.request.partition_access import PARTITIONS_PER_SLICE, counted_code
from tidemill.storage.log.interface import LogSlice
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import iter_headers
from tidemill.wire.compression import ZSTD
from tidemill.wire.generated.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

__all__ = ["HANDLER"]

FIRST_WITH_ZSTD = 10
FIRST_WITH_LEADER_HINTS = 12
FIRST_WITH_TOPIC_IDS = 13
FIRST_WITH_ENDPOINTS = 16
READ_COMMITTED = 1
UNKNOWN_OFFSET = -1
MAX_WAIT_MS_MAX = 60 * 1000
"""However long a client wants to wait: what is queued behind a parked fetch takes memory (S40)."""
STARVED_BYTES_MAX = 16 * KIB
"""What a fetch gets while there is no memory for answers: enough for who keeps up (S40)."""
LONG_FETCH_PARTITIONS = 5_000
"""From so many on a client's fetch takes turns: some tens of milliseconds at once."""
THROTTLE_MS_WHEN_FULL = 1000
"""A fetch that may not wait would come again at once."""


@final
class _Fetch:
    """One fetch request: read, perhaps parked, read again, answered."""

    __slots__ = (
        "_answer",
        "_baseline",
        "_context",
        "_is_starved",
        "_partitions",
        "_plan",
        "_replica_id",
        "_request",
        "_slices",
        "_timer",
        "_waits",
        "bytes_found",
    )

    def __init__(
        self, context: DataContext, request: FetchRequest, plan: FetchPlan, replica_id: int
    ) -> None:
        self._context = context
        self._request = request
        self._plan = plan
        self._replica_id = replica_id
        self._partitions: list[Partition] = []
        self._slices: list[tuple[PartitionData, LogSlice]] = []
        self._answer: Deferred[FetchResponse] | None = None
        self._timer: Timer | None = None
        self._baseline = 0
        self._waits = True
        self._is_starved = False
        """Clients have not taken their answers, and there is no memory for more (S40)."""
        self.bytes_found = 0

    # --- reading ---------------------------------------------------------------------------------

    def read(self) -> list[tuple[FetchTarget, PartitionData]]:
        """Every partition as it is now; stops adding records once the answer is full."""
        self._begin()
        return self._read_some(self._plan.targets, self._budget_bytes())

    async def read_in_turns(self) -> list[tuple[FetchTarget, PartitionData]]:
        """As `read`, while others get turns: each partition as it is when its turn comes."""
        self._begin()
        budget = self._budget_bytes()
        results = []
        for start in range(0, len(self._plan.targets), PARTITIONS_PER_SLICE):
            some = self._plan.targets[start : start + PARTITIONS_PER_SLICE]
            results += self._read_some(some, budget - self.bytes_found)
            await next_turn()
        return results

    def _begin(self) -> None:
        self._partitions = []
        self._slices = []
        self.bytes_found = 0
        self._waits = True
        self._is_starved = self._context.services.response_memory.is_exhausted

    def _read_some(
        self, targets: Sequence[FetchTarget], budget: int
    ) -> list[tuple[FetchTarget, PartitionData]]:
        results = []
        for target in targets:
            data = PartitionData(partition_index=target.index, aborted_transactions=None)
            try:
                budget -= self._read_one(target, data, budget)
            except (KafkaError, StorageFault) as error:
                self._waits = False
                self._refuse(target, data, error)
            results.append((target, data))
        return results

    def _budget_bytes(self) -> int:
        services = self._context.services
        if self._is_starved:
            return min(self._request.max_bytes, STARVED_BYTES_MAX)
        return min(
            self._request.max_bytes,
            services.config.fetch_max_bytes,
            services.response_memory.free_bytes,
        )

    def _read_one(self, target: FetchTarget, data: PartitionData, budget: int) -> int:
        context = self._context
        partition = _find(context, target)
        partition.check_leader()
        partition.check_epoch(target.current_leader_epoch)
        self._partitions.append(partition)
        data.log_start_offset = partition.log.log_start_offset
        # A position counts only in a log that agrees with ours, so epochs are compared first.
        diverges = target.last_fetched_epoch != NO_EPOCH and self._diverges(partition, target, data)
        end_offset = 0 if diverges else self._end_offset(partition, target)
        data.high_watermark = partition.high_watermark
        data.last_stable_offset = partition.last_stable_offset()
        if diverges:
            return 0
        first = self.bytes_found == 0 and not self._is_starved
        max_bytes = min(target.max_bytes, budget)
        if max_bytes <= 0 and not first:
            return 0
        found = partition.read(
            target.fetch_offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=first
        )
        self._take(data, found)
        return found.size_bytes

    def _end_offset(self, partition: Partition, target: FetchTarget) -> int:
        if self._replica_id >= 0:
            partition.follower_fetched(
                self._replica_id,
                fetch_offset=target.fetch_offset,
                flushed_offset=target.flushed_offset,
                now=self._context.services.clock.monotonic(),
            )
            if target.known_high_watermark < partition.high_watermark:
                self._waits = False  # the follower learns the new watermark at once (KIP-1166)
            return partition.log.log_end_offset
        if self._request.isolation_level == READ_COMMITTED:
            return partition.last_stable_offset()
        return partition.high_watermark

    def _diverges(self, partition: Partition, target: FetchTarget, data: PartitionData) -> bool:
        """The reader's last epoch ended earlier here: it must cut its tail first (KIP-595)."""
        epoch, end_offset = partition.end_offset_of_epoch(target.last_fetched_epoch)
        if epoch == target.last_fetched_epoch and end_offset >= target.fetch_offset:
            return False
        if epoch == UNKNOWN_OFFSET:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, "nothing here is as old as the reader's last epoch"
            )
        data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        self._waits = False
        return True

    def _take(self, data: PartitionData, found: LogSlice) -> None:
        self.bytes_found += found.size_bytes
        if found.load is not None:
            self._slices.append((data, found))
        elif len(found.chunks) == 1:
            data.records = found.chunks[0]
        elif found.chunks:
            data.records = b"".join(found.chunks)

    def _refuse(
        self, target: FetchTarget, data: PartitionData, error: KafkaError | StorageFault
    ) -> None:
        code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        context = self._context
        context.services.telemetry.count_error(code)
        data.error_code = int(code)
        data.high_watermark = data.last_stable_offset = UNKNOWN_OFFSET
        hinted = code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
        if hinted and context.version >= FIRST_WITH_LEADER_HINTS:
            data.current_leader = leader_hint(context, target.topic, target.index, LeaderIdAndEpoch)

    # --- waiting ---------------------------------------------------------------------------------

    def start(self) -> Answer:
        results = self.read()
        request = self._request
        enough = self.bytes_found >= request.min_bytes or not self._waits
        if enough or request.max_wait_ms <= 0 or not self._plan.targets:
            return self._answer_with(results)
        wait_ms = min(request.max_wait_ms, MAX_WAIT_MS_MAX)
        answer: Deferred[FetchResponse] = Deferred()
        if not self._context.services.parked.try_park(answer, self):
            self._context.throttle_ms = min(wait_ms, THROTTLE_MS_WHEN_FULL)
            return self._answer_with(results)
        self._park(answer, wait_ms)
        return answer

    async def start_in_turns(self) -> FetchResponse:
        """For a client that names very many partitions."""
        results = await self.read_in_turns()
        request = self._request
        if self.bytes_found < request.min_bytes and self._waits:
            self._context.throttle_ms = min(request.max_wait_ms, THROTTLE_MS_WHEN_FULL)
        if self._slices:
            await self._load(self._take_memory())
        return self._response(results)

    def _park(self, answer: Deferred[FetchResponse], wait_ms: int) -> None:
        self._answer = answer
        self._baseline = self._log_bytes() - self.bytes_found
        self._slices = []
        for partition in self._partitions:
            self._watchers(partition)[self] = None
        services = self._context.services
        self._timer = services.timers.add_after(
            wait_ms / 1000, partial(services.parked.finish, answer)
        )
        if self._is_starved:
            services.response_memory.wait(self.poke)

    @property
    def watched_partitions(self) -> int:
        return len(self._plan.targets)

    def _watchers(self, partition: Partition) -> dict[_Fetch, None]:
        chosen = partition.consumer_watchers if self._replica_id < 0 else partition.replica_watchers
        return chosen  # type: ignore[return-value]  # a _Fetch is a Watcher

    def _log_bytes(self) -> int:
        return sum(partition.log.size_bytes for partition in self._partitions)

    def poke(self) -> None:
        if self._answer is not None:
            self._context.services.parked.poke(self._answer)

    def look(self) -> None:
        """Poked: answer if enough has come, an estimate that never waits too long."""
        assert self._answer is not None
        services = self._context.services
        if self._is_starved:
            if services.response_memory.is_exhausted:
                services.response_memory.wait(self.poke)
                return
        elif self._request.min_bytes > 1 and self._replica_id < 0:
            grown = self._log_bytes() - self._baseline
            leads = all(partition.is_leader for partition in self._partitions)
            if leads and grown < self._request.min_bytes:
                return
        services.parked.finish(self._answer)

    def finish(self) -> None:
        """Answer with what there is."""
        answer = self._answer
        assert answer is not None
        self.abandon()
        outcome = self._answer_with(self.read())
        if isinstance(outcome, FetchResponse):
            answer.resolve(outcome)
        else:
            outcome.then(answer.resolve)

    def abandon(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._partitions:
            self._watchers(partition).pop(self, None)
        if self._is_starved:
            self._context.services.response_memory.forget(self.poke)

    # --- answering -------------------------------------------------------------------------------

    def _answer_with(
        self, results: list[tuple[FetchTarget, PartitionData]]
    ) -> FetchResponse | Deferred[FetchResponse]:
        if not self._slices:
            return self._response(results)
        deferred: Deferred[FetchResponse] = Deferred()
        loading = self._load_and_answer(results, deferred, self._take_memory())
        self._context.services.supervisor.spawn("cold read", loading)
        return deferred

    def _take_memory(self) -> int:
        """For what `_load` will bring; how much."""
        size_bytes = sum(found.size_bytes for _, found in self._slices)
        self._context.services.response_memory.take(size_bytes)
        return size_bytes

    async def _load_and_answer(
        self,
        results: list[tuple[FetchTarget, PartitionData]],
        deferred: Deferred[FetchResponse],
        size_bytes: int,
    ) -> None:
        await self._load(size_bytes)
        deferred.resolve(self._response(results))

    async def _load(self, size_bytes: int) -> None:
        """Read what is not in memory, away from the loop; the memory for it was taken already."""
        try:
            for data, found in self._slices:
                await self._load_one(data, found)
        finally:
            self._context.services.response_memory.give(size_bytes)

    async def _load_one(self, data: PartitionData, found: LogSlice) -> None:
        assert found.load is not None
        services = self._context.services
        try:
            chunks = await services.disk.run(found.load)
        except (KafkaError, StorageFault) as error:
            data.error_code = counted_code(self._context, error)
            return
        data.records = chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _response(self, results: list[tuple[FetchTarget, PartitionData]]) -> FetchResponse:
        plan = self._plan
        response = FetchResponse(
            throttle_time_ms=self._context.throttle_ms, session_id=plan.session_id
        )
        current: FetchableTopicResponse | None = None
        for target, data in results:
            if data.records and self._context.version < FIRST_WITH_ZSTD:
                _refuse_zstd(data)
            if data.records:
                plan.answered_with_data(target)
            if plan.session_id and not target.is_news(data) and plan.incremental:
                continue
            if (
                current is None
                or current.topic_id != target.topic_id
                or (current.topic != target.topic)
            ):
                current = FetchableTopicResponse(topic=target.topic, topic_id=target.topic_id)
                response.responses.append(current)
            current.partitions.append(data)
        if self._context.version >= FIRST_WITH_ENDPOINTS:
            hints = [data.current_leader for _, data in results]
            response.node_endpoints = leader_endpoints(self._context, hints, NodeEndpoint)
        return response


def _refuse_zstd(data: PartitionData) -> None:
    """A client that is too old for zstd must not be sent any (T23)."""
    assert data.records is not None
    if any(header.codec == ZSTD for _, header in iter_headers(data.records)):
        data.error_code = int(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        data.records = b""


def _find(context: DataContext, target: FetchTarget) -> Partition:
    if not target.topic:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not context.allows(Operation.READ, topic(target.topic)):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    partition = context.services.replicas.find(target.topic, target.index)
    if partition is None:
        raise context.missing_partition(target.topic, target.index)
    if context.version >= FIRST_WITH_TOPIC_IDS and partition.topic_id != target.topic_id:
        # The topic was made anew under its old name since the session learnt its id (I34).
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return partition


def _replica_id(request: FetchRequest) -> int:
    state = request.replica_state
    return request.replica_id if state is None else state.replica_id


def handle(context: DataContext, request: FetchRequest) -> Answer:
    replica_id = _replica_id(request)
    if replica_id >= 0 and not context.allows(Operation.CLUSTER_ACTION, cluster()):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    services = context.services
    plan = services.fetch_sessions.plan(request, context.image.names, services.clock.monotonic())
    fetch = _Fetch(context, request, plan, replica_id)
    if len(plan.targets) >= LONG_FETCH_PARTITIONS and replica_id < 0:
        return fetch.start_in_turns()
    return fetch.start()


HANDLER = Handler(
    api_key=ApiKey.FETCH,
    versions=(4, 18),
    handle=handle,
    refuse=refuse_with_error_code(FetchResponse),
)
