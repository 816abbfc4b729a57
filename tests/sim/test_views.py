"""A reader of a view that behaves as stock clients do, while its broker is killed.

It must read exactly the matching records, and its position must pass all others. Planted bugs of
views must be found by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.sim.clients import retry_until_ready
from tests.sim.replicas import eventually
from tests.sim.stock_reader import StockReader
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.rng import SeededRng
from tidemill.testing.mutants import MUTANTS, seeds_to_detection
from tidemill.testing.sim.world import SimWorld

TOPIC, VIEW, NO_TOPIC = "orders", "orders.eu", "none"
ROUNDS = 6
SEEDS = range(8)
REACHED_S = 20.0
LONG_VALUE_BYTES = 30_000
"""Two of them without a match are worth remembering."""
HEADERS = ([("region", b"eu")], [("region", b"us")], [("region", b"us")], [], [("other", b"eu")])
PLANTED = ("no skip batch", "unknown matches", "jump over matches")


class ViewStory:
    """One run: rounds of records, and of one event each, drawn from the seed."""

    def __init__(self, world: SimWorld, producer: Producer) -> None:
        self._world = world
        self._producer = producer
        self._rng = SeededRng(world.rng.below(1 << 62))
        self.shown: dict[int, bytes] = {}
        self.end = 0

    async def run(self, reader: StockReader) -> None:
        for _ in range(ROUNDS):
            for _ in range(1 + self._rng.below(8)):
                await self._produce()
            await self.read_by(reader)
            if self._rng.below(3) == 0:
                self._world.crash(0, power_loss=False)
                await self._world.restart(0)

    async def read_by(self, reader: StockReader) -> None:
        """Wait until the reader's position has passed everything."""
        async with asyncio.timeout(REACHED_S):
            await eventually(lambda: reader.position >= self.end)

    async def _produce(self) -> None:
        headers = HEADERS[self._rng.below(len(HEADERS))]
        value = b"%d " % self.end + bytes(self._rng.below(2) * LONG_VALUE_BYTES)
        delivery = await retry_until_ready(
            lambda: self._producer.send(TOPIC, value, partition=0, headers=headers)
        )
        offset = await delivery.offset()
        self.end = offset + 1
        if headers == HEADERS[0]:
            self.shown[offset] = value


@asynccontextmanager
async def reading(reader: StockReader) -> AsyncIterator[None]:
    task = asyncio.ensure_future(reader.run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def tell(seed: int) -> None:
    """Run the story of this seed and check what the reader has read."""

    async def main(world: SimWorld) -> None:
        await world.start_broker(0)
        net, bootstrap = world.client_net(), world.bootstrap
        async with (
            ClusterClient(net, bootstrap) as own,
            ClusterClient(net, bootstrap) as admin,
            ClusterClient(net, bootstrap) as producing,
            Producer(producing, world.clock, idempotent=True) as producer,
        ):
            keys = {"tidemill.view.of": TOPIC, "tidemill.view.filter": "region = 'eu'"}
            await retry_until_ready(lambda: Admin(admin).create_topic(TOPIC, partitions=1))
            await retry_until_ready(lambda: Admin(admin).create_topic(VIEW, configs=keys))
            story = ViewStory(world, producer)
            first, later = StockReader(own, VIEW, NO_TOPIC), StockReader(own, VIEW, NO_TOPIC)
            async with reading(first):
                await story.run(first)
            async with reading(later):
                await story.read_by(later)
        assert first.read == story.shown
        assert later.read == story.shown, "what the first has learnt misleads the second"

    SimWorld(seed).run(main)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_I40_a_reader_gets_exactly_the_matching_records_and_reaches_the_end(seed):
    tell(seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_of_views_is_found(name):
    assert seeds_to_detection(MUTANTS[name], tell, seeds_max=len(SEEDS)) is not None
