"""Fetches of routed clients: divided by leader, and answered when any of the leaders has something.

A leader that has nothing holds its part of the fetch for as long as the client waits. The client is
answered when the first leader has records, without waiting for the others. Their parts stay where
they are: usually the next fetch of the client wants the same of them and takes over the wait. If it
wants something else, the connection with the wait is dropped for a new one.

An answer must have every partition that was asked for. So a partition whose leader has not answered
yet is in it with the marks that it had last; a leader that has told none is asked not to wait, and
waited for briefly: one that stands still would hold up what the others have.

Sessions are declined: the client names all its partitions each time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, NamedTuple, final
from uuid import UUID

from tidemill.client.network.errors import ClientError
from tidemill.core.clock import Clock
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import KIB, MIB
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.routing.divided_requests import copied
from tidemill.server.routing.upstream import Upstream
from tidemill.wire.generated.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

__all__ = ["ANSWER_BYTES_MAX", "WaitingFetches"]

MAX_WAIT_MS_MAX = 60_000
"""The longest wait that a client gets, as on the listener for clients."""
LEAST_WAIT_S = 0.01
"""A shorter wait is not worth a request."""
FIRST_ANSWER_S = 1.0
"""For the marks of a leader that was asked not to wait. Then clients ask again for its part."""
ANSWER_S_MAX = 30.0
"""Beyond the time that the client waits."""
ANSWER_BYTES_MAX = 4 * MIB
"""Of all leaders together, for one fetch. What they send is counted only when it has come, and many
clients may ask at the same time."""
LEAST_BYTES = 64 * KIB
"""What a leader may send while there is no memory for routed clients."""

_Key = tuple[str, UUID, int]


@final
class _Marks(NamedTuple):
    """What a leader said last of a partition."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


@final
class _Part:
    """What one leader was asked, and its answer when it comes."""

    __slots__ = (
        "_memory",
        "answer",
        "asked_at",
        "held_bytes",
        "is_wanted",
        "request",
        "signature",
    )

    def __init__(
        self,
        request: FetchRequest,
        version: int,
        answer: asyncio.Future[Any],
        memory: MemoryPool,
        *,
        now: float,
    ) -> None:
        self.request = request
        self.asked_at = now
        self.signature = _signature(request, version)
        self.answer = answer
        self._memory = memory
        self.is_wanted = True
        self.held_bytes = 0
        """Of an answer that has come and has not gone on to the client."""
        answer.add_done_callback(lambda _future: self._account())

    @property
    def is_first(self) -> bool:
        """Whether the leader was asked not to wait: without its answer there are no marks."""
        return self.request.max_wait_ms == 0

    def first_left_s(self, now: float) -> float:
        """How long its marks are still waited for."""
        return self.asked_at + FIRST_ANSWER_S - now if self.is_first else 0.0

    @property
    def has_news(self) -> bool:
        """Of one that was answered: whether the client must hear of it now.

        A leader that lets nobody wait says how long to stay away: it must not be asked again.
        """
        answer = self.answer_or_none()
        if answer is None or answer.error_code or answer.throttle_time_ms:
            return True
        return any(
            one.records or one.error_code or one.diverging_epoch is not None
            for one in _read(answer)
        )

    def answer_or_none(self) -> FetchResponse | None:
        """Of one that is done; None if the leader could not be asked."""
        error = self.answer.exception()
        if error is None:
            answer: FetchResponse = self.answer.result()
            return answer
        if isinstance(error, KafkaError | ClientError):
            return None
        raise error

    def forget(self) -> None:
        self.is_wanted = False
        if self.held_bytes:
            self._memory.give(self.held_bytes)
            self.held_bytes = 0

    def _account(self) -> None:
        answer = None if not self.is_wanted or self.answer.cancelled() else self.answer_or_none()
        if answer is not None:
            self.held_bytes = sum(len(one.records or b"") for one in _read(answer))
            self._memory.take(self.held_bytes)


@final
class WaitingFetches:
    """The parts of one client's fetches that wait at leaders."""

    def __init__(
        self, memory: MemoryPool, clock: Clock, connect: Callable[[int], Upstream]
    ) -> None:
        self._memory = memory
        self._clock = clock
        self._connect = connect
        self._upstreams: dict[int, Upstream] = {}
        self._parts: dict[int, _Part] = {}
        """By leader: at most one each."""
        self._marks: dict[_Key, _Marks] = {}
        """Of the partitions of the last fetch."""
        self._turn = asyncio.Lock()
        """A client that sends several fetches at once is served one after the other."""
        self._is_closed = False

    def close(self) -> None:
        """The client has gone. Its fetches that wait for their turn ask nobody."""
        self._is_closed = True
        for broker_id in list(self._parts):
            self._parts.pop(broker_id).forget()
        for upstream in self._upstreams.values():
            upstream.close()

    async def fetch(
        self, request: FetchRequest, divided: dict[int, FetchRequest], *, version: int
    ) -> FetchResponse:
        """The answer to `request`, of which each leader gets its part."""
        async with self._turn:
            if self._is_closed:
                return FetchResponse()
            for gone in [one for one in self._parts if one not in divided]:
                self._drop(gone)
            budget = max(min(self._memory.free_bytes, ANSWER_BYTES_MAX), LEAST_BYTES)
            bytes_max = max(1, min(request.max_bytes, budget) // len(divided))
            for leader, part in divided.items():
                self._ask(leader, self._prepared(part, bytes_max, len(divided)), version)
            wait_ms = min(request.max_wait_ms, MAX_WAIT_MS_MAX) if request.min_bytes > 0 else 0
            await self._wait(wait_ms / 1000, version)
            return self._answer(request, divided)

    def _prepared(self, part: FetchRequest, bytes_max: int, leaders: int) -> FetchRequest:
        is_known = all(key in self._marks for key in _keys(part))
        prepared: FetchRequest = copied(
            part,
            session_id=0,
            session_epoch=-1,
            forgotten_topics_data=[],
            rack_id="",
            max_bytes=bytes_max,
            max_wait_ms=min(part.max_wait_ms, MAX_WAIT_MS_MAX) if is_known else 0,
            # Together the leaders may have enough; each of them cannot know that.
            min_bytes=part.min_bytes if leaders == 1 else min(1, part.min_bytes),
        )
        return prepared

    def _ask(self, leader: int, request: FetchRequest, version: int) -> None:
        known = self._parts.get(leader)
        if known is not None:
            if known.signature == _signature(request, version):
                return  # it waits there, or its answer has come meanwhile
            self._drop(leader)
        upstream = self._upstreams.get(leader)
        if upstream is None:
            upstream = self._upstreams[leader] = self._connect(leader)
        timeout_s = request.max_wait_ms / 1000 + ANSWER_S_MAX
        answer = upstream.ask(request, FetchResponse, version=version, timeout_s=timeout_s)
        now = self._clock.monotonic()
        part = self._parts[leader] = _Part(request, version, answer, self._memory, now=now)
        answer.add_done_callback(lambda _future: self._came(leader, part))

    def _came(self, leader: int, part: _Part) -> None:
        """The client may be away for long: without memory for the answer, it has to ask again."""
        is_kept = self._turn.locked() or not self._memory.is_exhausted
        if not is_kept and self._parts.get(leader) is part:
            self._drop(leader)

    async def _wait(self, max_wait_s: float, version: int) -> None:
        """Until a leader has news, or the client has waited long enough."""
        until = self._clock.monotonic() + max_wait_s
        while True:
            now = self._clock.monotonic()
            left_s = until - now
            done = {leader: one for leader, one in self._parts.items() if one.answer.done()}
            is_over = left_s <= LEAST_WAIT_S or any(one.has_news for one in done.values())
            pending = [one for leader, one in self._parts.items() if leader not in done]
            if is_over:
                pending = [one for one in pending if one.first_left_s(now) > 0]
                left_s = max((one.first_left_s(now) for one in pending), default=0.0)
            else:
                pending += [self._ask_again(leader, left_s, version) for leader in done]
            if not pending:
                return
            await asyncio.wait(
                [one.answer for one in pending],
                timeout=left_s,
                return_when=asyncio.FIRST_COMPLETED,
            )

    def _ask_again(self, leader: int, left_s: float, version: int) -> _Part:
        """A leader had nothing, and the client still waits."""
        part = self._parts.pop(leader)
        part.forget()
        for topic in part.answer.result().responses:
            for one in topic.partitions:
                self._marks[topic.topic, topic.topic_id, one.partition_index] = _marks_of(one)
        request: FetchRequest = copied(part.request, max_wait_ms=math.ceil(1000 * left_s))
        self._ask(leader, request, version)
        return self._parts[leader]

    # --- answers ---------------------------------------------------------------------------------

    def _answer(self, request: FetchRequest, divided: dict[int, FetchRequest]) -> FetchResponse:
        found: dict[_Key, PartitionData] = {}
        response = FetchResponse()
        for leader, asked in divided.items():
            part = self._parts.get(leader)
            if part is None or not part.answer.done():
                continue
            self._parts.pop(leader).forget()
            answer = part.answer_or_none()
            if answer is None:
                found |= {key: _refused(key[2]) for key in _keys(asked)}
                continue
            response.throttle_time_ms = max(response.throttle_time_ms, answer.throttle_time_ms)
            response.error_code = response.error_code or answer.error_code
            for topic in answer.responses:
                for one in topic.partitions:
                    found[topic.topic, topic.topic_id, one.partition_index] = one
        self._fill(response, request, found)
        return response

    def _fill(
        self, response: FetchResponse, request: FetchRequest, found: dict[_Key, PartitionData]
    ) -> None:
        """Every partition of the request once, in its order."""
        marks: dict[_Key, _Marks] = {}
        for topic in request.topics:
            answered = FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id)
            response.responses.append(answered)
            for wanted in topic.partitions:
                key = (topic.topic, topic.topic_id, wanted.partition)
                data = found.get(key)
                if data is None:
                    data = _nothing_new(key[2], self._marks.get(key))
                if not data.error_code:
                    marks[key] = _marks_of(data)
                answered.partitions.append(data)
        self._marks = marks

    def _drop(self, leader: int) -> None:
        """Nobody wants the answer: it would hold up the next one."""
        part = self._parts.pop(leader)
        part.forget()
        if not part.answer.done():
            self._upstreams.pop(leader).close()


def _keys(request: FetchRequest) -> list[_Key]:
    return [
        (topic.topic, topic.topic_id, one.partition)
        for topic in request.topics
        for one in topic.partitions
    ]


def _signature(request: FetchRequest, version: int) -> tuple[object, ...]:
    """What two fetches have in common that would get the same answer."""
    wanted = [
        (
            topic.topic,
            topic.topic_id,
            one.partition,
            one.fetch_offset,
            one.current_leader_epoch,
            one.last_fetched_epoch,
        )
        for topic in request.topics
        for one in topic.partitions
    ]
    return version, request.isolation_level, request.max_wait_ms > 0, tuple(sorted(wanted))


def _read(answer: FetchResponse) -> list[PartitionData]:
    return [one for topic in answer.responses for one in topic.partitions]


def _marks_of(data: PartitionData) -> _Marks:
    return _Marks(data.high_watermark, data.last_stable_offset, data.log_start_offset)


def _nothing_new(index: int, marks: _Marks | None) -> PartitionData:
    if marks is None:
        return _refused(index)
    return PartitionData(
        partition_index=index,
        high_watermark=marks.high_watermark,
        last_stable_offset=marks.last_stable_offset,
        log_start_offset=marks.log_start_offset,
        aborted_transactions=None,
    )


def _refused(index: int) -> PartitionData:
    """Its leader cannot be asked: reading again is safe, wherever it is now."""
    return PartitionData(
        partition_index=index,
        error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        high_watermark=-1,
        aborted_transactions=None,
    )
