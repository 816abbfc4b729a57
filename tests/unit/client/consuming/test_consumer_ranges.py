from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.support.fake_cluster import FakeCluster
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.consuming.consumer import Consumer, FetchedBatches
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.ids import TopicPartition
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.records import Record, build_batch

T0 = TopicPartition("t", 0)
BATCHES = 20
BATCH_RECORDS = 10
ANSWER_BYTES = 25_000


def reading(
    story: Callable[[Consumer], Coroutine[Any, Any, Any]], **options: Any
) -> tuple[Any, list[Any]]:
    """Run a story over 20 batches of 10 KB, two per answer; its result and all Fetch requests."""
    asked: list[Any] = []

    async def scenario() -> Any:
        fakes = FakeCluster(brokers=1)
        partition = fakes.add_topic("t", 1).partitions[0]
        for _ in range(BATCHES):
            records = [Record(bytes(1000), timestamp=1) for _ in range(BATCH_RECORDS)]
            partition.append(bytes(build_batch(records)))
        for broker in fakes.brokers.values():
            real = broker.handlers[ApiKey.FETCH]

            def listen(request: Any, version: int, real: Any = real) -> Any:
                asked.append(request)
                answer = real(request, version)
                data = answer.responses[0].partitions[0]
                data.records = bytes(data.records or b"")[:ANSWER_BYTES]  # the last batch is cut
                return answer

            broker.handlers[ApiKey.FETCH] = listen
        cluster = ClusterClient(fakes.net, fakes.bootstrap)
        await cluster.refresh(["t"])
        return await story(Consumer(cluster, **options))

    return run_virtually(scenario()), asked


async def read_all(consumer: Consumer) -> list[FetchedBatches]:
    fetched: list[FetchedBatches] = []
    while consumer.positions:
        fetched += await consumer.poll_batches(1)
    return fetched


def offsets_of(fetched: list[FetchedBatches]) -> list[int]:
    return [header.base_offset for piece in fetched for _, header in piece.batches]


def test_a_range_is_read_to_its_end_and_then_dropped():
    async def story(consumer: Consumer) -> list[FetchedBatches]:
        consumer.read_between({T0: (35, 62)})
        return await read_all(consumer)

    fetched, asked = reading(story)
    assert offsets_of(fetched) == [30, 40, 50, 60]
    assert fetched[0].from_offset == 35
    assert len(asked) == 2


def test_an_empty_range_is_not_read_at_all():
    async def story(consumer: Consumer) -> dict[TopicPartition, int]:
        consumer.read_between({T0: (35, 35)})
        await consumer.poll_batches(1)
        return consumer.positions

    positions, asked = reading(story)
    assert positions == {}
    assert asked == []


def test_a_fetch_near_the_end_of_a_range_asks_for_little():
    async def story(consumer: Consumer) -> list[FetchedBatches]:
        consumer.read_between({T0: (0, 150)})
        first = await consumer.poll_batches(1)
        return [*first, *await read_all(consumer)]

    _, asked = reading(story, partition_bytes_max=30_000_000)
    sizes = [request.topics[0].partitions[0].partition_max_bytes for request in asked]
    assert sizes[0] == 1024 * 1024
    assert all(65_536 <= size < 250_000 for size in sizes[1:])
    assert len(sizes) == 8
    assert sizes[1:] == sorted(sizes[1:], reverse=True)


def test_a_position_can_be_advanced_or_dropped():
    async def story(consumer: Consumer) -> list[dict[TopicPartition, int]]:
        consumer.read_between({T0: (0, 50)})
        seen = []
        for offset in (20, 50):
            consumer.skip_to(T0, offset)
            seen.append(dict(consumer.positions))
        consumer.read_between({T0: (0, 50)})
        consumer.skip_to(T0, None)
        return [*seen, dict(consumer.positions)]

    assert reading(story)[0] == [{T0: 20}, {}, {}]


def test_without_read_ahead_a_fetch_is_sent_only_by_poll():
    async def story(consumer: Consumer) -> None:
        consumer.positions[T0] = 0
        await consumer.poll_batches(1)

    assert len(reading(story, read_ahead=False)[1]) == 1
    assert len(reading(story, read_ahead=True)[1]) == 2


def test_the_isolation_level_is_asked_for():
    async def story(consumer: Consumer) -> None:
        consumer.positions[T0] = 0
        await consumer.poll_batches(1)

    assert reading(story, isolation_level=1)[1][0].isolation_level == 1
