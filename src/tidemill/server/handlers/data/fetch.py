"""Fetch (1), versions 4..18.

HOT PATH: once per fetch and per partition in it.

v4 isolation level; v5 log start offset; v7 sessions; v9 leader epochs; v10 as v9; v11 rack; v12
flexible and diverging epochs; v13 topic ids; v15-v18 fields of followers.

v10 says that the client knows zstd, but clients of older versions are sent zstd too, as by Kafka 4:
kafka-python 2.0 fetches by v4 and reads it (T23).

A follower's fetch has a path of its own: `replica_fetch.py`.

The fetch is planned from the request and its session, read (`FetchReader`) and answered. A fetch
that finds fewer than `min_bytes` is parked until its partitions have more or its time is up, and
then read again. One that reads committed records waits until a last stable offset has moved.
Batches that are not in memory are read in a thread before the answer leaves. A client that names
thousands of partitions is served in turns and does not park; it is told to wait instead (S11).

A client that names its rack may be sent to a replica that is nearer, and an in-sync follower serves
such a client (KIP-392; `near_replicas.py`).
"""

from __future__ import annotations

from typing import Final, final

from tidemill.core.loop.deferred import Deferred
from tidemill.replication.partition import Partition
from tidemill.server.fetching.fetch_sessions import FetchPlan
from tidemill.server.handlers.data.cold_reads import ColdRead
from tidemill.server.handlers.data.fetch_reader import FetchReader, FetchResults
from tidemill.server.handlers.data.replica_fetch import handle_replica
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.server.request.leader_hints import leader_endpoints
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
)

__all__ = ["HANDLER"]

FIRST_WITH_ENDPOINTS: Final = 16
MAX_WAIT_MS_MAX: Final = 60 * 1000
"""The longest wait that a client gets: what is queued behind a parked fetch takes memory (S40)."""
LONG_FETCH_PARTITIONS = 5_000
"""From so many on a client's fetch takes turns: some tens of milliseconds at once."""
REPEATED_ERROR_WAIT_MS: Final = 500
"""The longest wait of a fetch with an error that its session was told before. Its partition wakes
nobody when the error is gone, and stock clients wait as long for each fetch anyway."""
THROTTLE_MS_WHEN_FULL: Final = 1000
"""A fetch that may not wait would come again at once."""


def handle(context: DataContext, request: FetchRequest) -> Answer:
    state = request.replica_state
    if (request.replica_id if state is None else state.replica_id) >= 0:
        return handle_replica(context, request)
    services = context.services
    plan = services.fetch_sessions.plan(request, services.clock.monotonic())
    reader = FetchReader(context, request, plan.targets)
    if len(plan.targets) >= LONG_FETCH_PARTITIONS:
        return _answer_in_turns(context, request, plan, reader)
    results = reader.read()
    is_done = reader.bytes_found >= request.min_bytes or reader.must_answer
    wait_ms_max = REPEATED_ERROR_WAIT_MS if reader.repeats_error else MAX_WAIT_MS_MAX
    wait_ms = min(request.max_wait_ms, wait_ms_max)
    if reader.reads_views:
        reader.view_until_s = services.clock.monotonic() + wait_ms / 1000
    if is_done or request.max_wait_ms <= 0 or not plan.targets:
        return _answer(context, plan, reader, results)
    waiting = _WaitingFetch(context, plan, reader, request.min_bytes)
    answer = services.parked.try_park(
        [partition.consumer_watchers for partition in reader.partitions],
        wait_ms=wait_ms,
        is_ready=waiting.has_enough,
        finish=waiting.read_and_answer,
        memory=services.response_memory if reader.is_starved else None,
    )
    if answer is None:
        context.throttle_ms = min(wait_ms, THROTTLE_MS_WHEN_FULL)
        return _answer(context, plan, reader, results)
    reader.cold, reader.views = [], []  # read again when the wait is over
    if reader.reads_views:
        waiting.own_answer = answer
    return answer


async def _answer_in_turns(
    context: DataContext, request: FetchRequest, plan: FetchPlan, reader: FetchReader
) -> FetchResponse:
    """For a client that names very many partitions."""
    results = await reader.read_in_turns()
    if reader.bytes_found < request.min_bytes and not reader.must_answer:
        context.throttle_ms = min(request.max_wait_ms, THROTTLE_MS_WHEN_FULL)
    if reader.cold or reader.views:
        await ColdRead(context, reader.cold, reader.views).run()
    return _response(context, plan, results)


@final
class _WaitingFetch:
    """A parked fetch: whether its partitions have grown by enough, and its answer then."""

    __slots__ = (
        "_context",
        "_empty_bytes",
        "_min_bytes",
        "_partitions",
        "_plan",
        "_reader",
        "_roles",
        "_stable_offsets",
        "own_answer",
    )

    def __init__(
        self, context: DataContext, plan: FetchPlan, reader: FetchReader, min_bytes: int
    ) -> None:
        self.own_answer: Deferred[FetchResponse] | None = None
        """Of a fetch of views, which may have to park with it again."""
        self._context = context
        self._plan = plan
        self._reader = reader
        self._min_bytes = min_bytes
        self._partitions = reader.partitions
        self._roles = _roles(self._partitions)
        self._empty_bytes = 0
        """The size of the logs at which this fetch would have found nothing."""
        self._stable_offsets: list[int] | None = None
        """Of a reader of committed records: unless one of these moves, there is nothing new."""
        if reader.reads_committed:
            self._stable_offsets = _stable_offsets(self._partitions)
        if min_bytes > 1:
            self._empty_bytes = _log_bytes(self._partitions) - reader.bytes_found

    def has_enough(self) -> bool:
        """An estimate from the sizes of the logs, which never waits too long."""
        if self._stable_offsets is not None and self._is_held():
            return False
        if self._min_bytes <= 1:
            return True
        if _log_bytes(self._partitions) - self._empty_bytes >= self._min_bytes:
            return True
        return _roles(self._partitions) != self._roles

    def _is_held(self) -> bool:
        """Open transactions still hold everything that was appended."""
        is_same = _stable_offsets(self._partitions) == self._stable_offsets
        return is_same and _roles(self._partitions) == self._roles

    def read_and_answer(self) -> FetchResponse | Deferred[FetchResponse]:
        reader = self._reader
        return _answer(self._context, self._plan, reader, reader.read(), self.own_answer)


def _stable_offsets(partitions: list[Partition]) -> list[int]:
    return [partition.last_stable_offset() for partition in partitions]


def _roles(partitions: list[Partition]) -> list[tuple[int, bool, bool]]:
    return [partition.reading_role for partition in partitions]


def _log_bytes(partitions: list[Partition]) -> int:
    return sum(partition.log.size_bytes for partition in partitions)


def _answer(
    context: DataContext,
    plan: FetchPlan,
    reader: FetchReader,
    results: FetchResults,
    own_answer: Deferred[FetchResponse] | None = None,
) -> FetchResponse | Deferred[FetchResponse]:
    """The response: now, or once cold batches have been read and those of views filtered."""
    if not reader.cold and not reader.views:
        return _response(context, plan, results)
    answer: Deferred[FetchResponse] = Deferred() if own_answer is None else own_answer
    cold = ColdRead(context, reader.cold, reader.views)
    ends = reader.ends() if reader.views else []
    context.services.parked.begin_work(answer)
    context.services.supervisor.spawn(
        "cold read", _load_and_answer(context, plan, reader, results, cold, ends, answer)
    )
    return answer


async def _load_and_answer(
    context: DataContext,
    plan: FetchPlan,
    reader: FetchReader,
    results: FetchResults,
    cold: ColdRead,
    ends: list[int],
    answer: Deferred[FetchResponse],
) -> None:
    await cold.run()
    is_wanted = context.services.parked.end_work(answer)
    # What came meanwhile has woken nobody, so a fetch that may have missed it does not wait.
    may_wait = is_wanted and bool(reader.views) and reader.ends() == ends
    if not may_wait or not _waits_on(context, plan, reader, answer):
        answer.resolve(_response(context, plan, results))


def _waits_on(
    context: DataContext,
    plan: FetchPlan,
    reader: FetchReader,
    answer: Deferred[FetchResponse],
) -> bool:
    """Park a fetch that has found nothing but views without a match, if it has time left."""
    services = context.services
    wait_ms = int((reader.view_until_s - services.clock.monotonic()) * 1000)
    if wait_ms <= 0 or not reader.found_only_quiet_views():
        return False
    for view in reader.views:
        view.pass_over()
    waiting = _WaitingFetch(context, plan, reader, 0)
    waiting.own_answer = answer
    watched = [partition.consumer_watchers for partition in reader.partitions]
    parked = services.parked.try_park(
        watched,
        wait_ms=wait_ms,
        is_ready=waiting.has_enough,
        finish=waiting.read_and_answer,
        answer=answer,
    )
    return parked is not None


def _response(context: DataContext, plan: FetchPlan, results: FetchResults) -> FetchResponse:
    response = FetchResponse(throttle_time_ms=context.throttle_ms, session_id=plan.session_id)
    current: FetchableTopicResponse | None = None
    for target, data in results:
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
    if context.version >= FIRST_WITH_ENDPOINTS:
        hints = [data.current_leader for _, data in results]
        response.node_endpoints = leader_endpoints(context, hints, NodeEndpoint)
    return response


HANDLER = Handler(
    api_key=ApiKey.FETCH,
    versions=(4, 18),
    handle=handle,
    refuse=refuse_with_error_code(FetchResponse),
)
