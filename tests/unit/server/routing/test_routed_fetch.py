"""Fetches of routed clients: who is waited for, and what stays where it is."""

from __future__ import annotations

import asyncio

from tests.support.memory_peer import simulated
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.routing.divided_requests import BY_LEADER, divided_by_leader
from tidemill.server.routing.routed_fetch import ANSWER_BYTES_MAX, WaitingFetches
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

VERSION = 12


class LoopClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Leader:
    """A broker that answers when a test says so."""

    def __init__(self) -> None:
        self.asked: list[FetchRequest] = []
        self.answers: list[asyncio.Future[FetchResponse]] = []
        self.is_closed = False

    def ask(self, request, _type, *, version, timeout_s):
        assert version == VERSION
        self.asked.append(request)
        future = asyncio.get_running_loop().create_future()
        self.answers.append(future)
        return future

    def answer(self, records: bytes = b"", *, mark: int = 5, throttle_ms: int = 0) -> None:
        topic = self.asked[-1].topics[0]
        partitions = [
            PartitionData(partition_index=one.partition, high_watermark=mark, records=records)
            for one in topic.partitions
        ]
        told = FetchableTopicResponse(topic=topic.topic, partitions=partitions)
        self.answers[-1].set_result(FetchResponse(responses=[told], throttle_time_ms=throttle_ms))

    def close(self) -> None:
        self.is_closed = True


class Bench:
    """Partition n is led by broker n."""

    def __init__(self) -> None:
        self.memory = MemoryPool(1 << 20)
        self.leaders: dict[int, list[Leader]] = {0: [], 1: []}
        self.fetches = WaitingFetches(self.memory, LoopClock(), self._connect)  # type: ignore[arg-type]

    def _connect(self, broker_id: int) -> Leader:
        self.leaders[broker_id].append(Leader())
        return self.leaders[broker_id][-1]

    def leader(self, broker_id: int) -> Leader:
        return self.leaders[broker_id][-1]

    def start(
        self, *offsets: int, max_wait_ms: int = 500, max_bytes: int = 1000, min_bytes: int = 1
    ) -> asyncio.Task[FetchResponse]:
        wanted = [FetchPartition(partition=n, fetch_offset=at) for n, at in enumerate(offsets)]
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic="t", partitions=wanted)],
        )
        shape = BY_LEADER[ApiKey.FETCH]
        parts = divided_by_leader(request, shape, lambda _name, _id, index: index)
        return asyncio.ensure_future(self.fetches.fetch(request, parts, version=VERSION))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def read(task: asyncio.Task[FetchResponse]) -> list[tuple[int, bytes, int]]:
    (topic,) = task.result().responses
    return [(one.error_code, bytes(one.records), one.high_watermark) for one in topic.partitions]


async def known(bench: Bench) -> None:
    """Both leaders have told their marks."""
    task = bench.start(5, 5, max_wait_ms=0)
    await turns()
    bench.leader(0).answer()
    bench.leader(1).answer()
    await task


@simulated
async def test_the_first_fetch_has_the_marks_of_all_leaders():
    bench = Bench()
    task = bench.start(0, 0)
    await turns()
    assert [bench.leader(n).asked[-1].max_wait_ms for n in (0, 1)] == [0, 0]
    bench.leader(0).answer(b"records", mark=7)
    await turns()
    assert not task.done()
    bench.leader(1).answer(mark=3)
    await turns()
    assert read(task) == [(0, b"records", 7), (0, b"", 3)]


@simulated
async def test_a_leader_that_stands_still_does_not_hold_up_what_the_others_have():
    bench = Bench()
    loop = asyncio.get_running_loop()
    for number, wait_s in ((1, 1.0), (2, 0.0), (3, 0.0)):  # it is waited for once
        began = loop.time()
        task = bench.start(number, 0)
        await turns()
        bench.leader(0).answer(b"records", mark=number)
        await task
        assert round(loop.time() - began, 3) == wait_s
        unknown = (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"", -1)
        assert read(task) == [(0, b"records", number), unknown]
    assert len(bench.leader(1).asked) == 1
    bench.leader(1).answer(b"late", mark=3)
    last = bench.start(4, 0)
    await turns()
    assert read(last)[1] == (0, b"late", 3)


@simulated
async def test_one_leader_with_records_is_enough_and_the_other_waits_on():
    bench = Bench()
    await known(bench)
    first = bench.start(5, 5)
    await turns()
    bench.leader(0).answer(b"new", mark=6)
    await turns()
    assert read(first) == [(0, b"new", 6), (0, b"", 5)]
    second = bench.start(6, 5)
    await turns()
    assert len(bench.leader(1).asked) == 2  # the wait of the first fetch goes on
    bench.leader(1).answer(b"other", mark=6)
    await turns()
    assert read(second) == [(0, b"", 6), (0, b"other", 6)]


@simulated
async def test_a_wait_that_nobody_wants_any_more_is_dropped():
    bench = Bench()
    await known(bench)
    first = bench.start(5, 5)
    await turns()
    bench.leader(0).answer(b"new", mark=6)
    await turns()
    assert first.done()
    bench.start(6, 2)  # the client has gone back in the other partition
    await turns()
    old, new = bench.leaders[1]
    assert old.is_closed
    assert new.asked[-1].topics[0].partitions[0].fetch_offset == 2
    bench.fetches.close()


@simulated
async def test_a_leader_that_has_nothing_is_asked_again_while_the_client_waits():
    bench = Bench()
    await known(bench)
    task = bench.start(5, 5)
    await turns()
    bench.leader(0).answer()
    await turns()
    assert not task.done()
    assert len(bench.leader(0).asked) == 3
    await asyncio.sleep(0.6)
    assert read(task) == [(0, b"", 5), (0, b"", 5)]


@simulated
async def test_a_leader_that_cannot_be_asked_is_looked_for_again():
    bench = Bench()
    task = bench.start(0, 0)
    await turns()
    bench.leader(0).answer(b"x")
    bench.leader(1).answers[-1].set_exception(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE))
    await turns()
    refused = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert read(task) == [(0, b"x", 5), (refused, b"", -1)]


@simulated
async def test_an_answer_that_waits_for_its_client_is_counted_until_it_goes_on():
    bench = Bench()
    await known(bench)
    first = bench.start(5, 5)
    await turns()
    bench.leader(0).answer(b"a")
    await turns()
    assert first.done()
    bench.leader(1).answer(b"twelve bytes")
    await turns()
    assert bench.memory.used_bytes == 12
    second = bench.start(5, 5)
    await turns()
    assert read(second)[1] == (0, b"twelve bytes", 5)
    assert bench.memory.used_bytes == 0
    bench.fetches.close()


@simulated
async def test_a_client_that_goes_leaves_nothing_behind():
    bench = Bench()
    await known(bench)
    task = bench.start(5, 5)
    await turns()
    bench.leader(0).answer(b"abc")
    bench.fetches.close()
    bench.leader(1).answers[-1].set_exception(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE))
    await turns()
    assert task.done()
    assert bench.memory.used_bytes == 0
    assert all(one.is_closed for some in bench.leaders.values() for one in some)


@simulated
async def test_a_fetch_that_waits_behind_another_asks_nobody_for_a_client_that_has_gone():
    bench = Bench()
    await known(bench)
    first, second = bench.start(5, 5), bench.start(6, 6)
    await turns()
    bench.fetches.close()
    for leader in (bench.leader(0), bench.leader(1)):
        leader.answers[-1].set_exception(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE))
    await turns()
    assert first.done()
    assert second.done()
    assert all(one.is_closed for some in bench.leaders.values() for one in some)


@simulated
async def test_S40_what_comes_for_a_client_that_is_away_is_dropped_while_memory_is_full():
    bench = Bench()
    await known(bench)
    first = bench.start(5, 5)
    await turns()
    bench.leader(0).answer(b"a")
    await turns()
    assert first.done()
    bench.memory.take(bench.memory.limit_bytes)
    bench.leader(1).answer(b"twelve bytes")
    await turns()
    assert bench.memory.used_bytes == bench.memory.limit_bytes
    bench.memory.give(bench.memory.limit_bytes)
    second = bench.start(5, 5)
    await turns()
    bench.leader(1).answer(b"again")
    await turns()
    assert read(second)[1] == (0, b"again", 5)
    bench.fetches.close()


@simulated
async def test_S40_one_fetch_asks_for_no_more_than_its_share_of_the_memory():
    bench = Bench()
    bench.memory.limit_bytes = 1 << 30
    bench.start(0, 0, max_bytes=1 << 30)
    await turns()
    asked = sum(bench.leader(n).asked[-1].max_bytes for n in (0, 1))
    assert asked <= ANSWER_BYTES_MAX
    bench.fetches.close()


@simulated
async def test_a_client_that_wants_no_bytes_is_answered_at_once_and_nobody_is_asked_again():
    bench = Bench()
    await known(bench)
    task = bench.start(5, 5, min_bytes=0)
    await turns()
    bench.leader(0).answer()
    bench.leader(1).answer()
    await turns()
    assert read(task) == [(0, b"", 5), (0, b"", 5)]
    assert [len(bench.leader(n).asked) for n in (0, 1)] == [2, 2]


@simulated
async def test_S40_a_leader_that_lets_nobody_wait_is_not_asked_again_meanwhile():
    bench = Bench()
    await known(bench)
    task = bench.start(5, 5)
    await turns()
    bench.leader(0).answer(throttle_ms=100)
    await turns()
    assert task.done()
    assert task.result().throttle_time_ms == 100
    assert len(bench.leader(0).asked) == 2
