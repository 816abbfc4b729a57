"""Two brokers on the store of one host: each has its own session, both follow the same metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tidemill.core.clock import SystemClock
from tidemill.core.config.broker_config import Endpoint, broker_config
from tidemill.core.rng import SeededRng
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.metadata.rules.topic_planner import TopicSpec
from tidemill.metadata.store.sqlite_store import SqliteCoord


@asynccontextmanager
async def joined(directory: Path, broker_id: int) -> AsyncIterator[Cluster]:
    """A broker's cluster, following the store until the block ends."""
    coord = SqliteCoord(str(directory / "coord.db"), SystemClock())
    config = broker_config(flags=[f"node.id={broker_id}"])
    cluster = Cluster(coord, config, SeededRng(broker_id), clock=SystemClock())
    await cluster.start(Endpoint(f"host-{broker_id}", 9092), unclean=False)
    loop = asyncio.ensure_future(cluster.run())
    try:
        yield cluster
    finally:
        loop.cancel()
        await asyncio.wait([loop])
        await cluster.close()


async def until(cluster: Cluster, true_of: Callable[[MetadataImage], bool]) -> None:
    """Wait for an image."""
    changed = asyncio.Event()
    cluster.subscribe(lambda _: changed.set())
    while not true_of(cluster.image):
        await changed.wait()
        changed.clear()


def test_brokers_of_one_host_follow_each_other_and_take_over(run, tmp_path):
    async def scenario() -> None:
        async with joined(tmp_path, 1) as second:
            assert second.is_controller
            async with joined(tmp_path, 0) as first:
                await until(first, lambda image: len(image.members) == 2)
                await until(second, lambda image: len(image.brokers) == 2)
                assert first.may_act
                spec = TopicSpec(name="t", assignments={0: [0, 1]})
                await second.create_topics([spec])
                await until(first, lambda image: "t" in image.topics)
                assert first.image.topics == second.image.topics
            await until(second, lambda image: image.topics["t"].partitions[0].leader == 1)
            assert second.image.topics["t"].partitions[0].leader_epoch == 1

    run(scenario())


def test_another_broker_becomes_the_controller_when_the_first_one_leaves(run, tmp_path):
    async def scenario() -> None:
        async with joined(tmp_path, 1) as second:
            await second.create_topics([TopicSpec(name="t", partitions=1)])
            async with joined(tmp_path, 0) as first:
                await second.close()
                await until(first, lambda image: image.controller_id == 0)
                await until(first, lambda image: image.topics["t"].partitions[0].leader == -1)
                assert first.image.controller_epoch == 2

    run(scenario())
