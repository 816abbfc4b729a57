"""A caught-up reader while records are deleted, topics go and the broker is killed.

It must read every acknowledged record, in fetches that wait. Each planted bug replaces correct code
with a mistake that this broker once made, and some seed must find it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tests.sim.clients import retry_until_ready
from tests.sim.replicas import eventually
from tests.sim.stock_reader import StockReader
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.rng import SeededRng
from tidemill.server.handlers.data import offset_for_leader_epoch
from tidemill.server.request.context import DataContext
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.generated.fetch import FetchRequest
from tidemill.wire.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderPartition,
)
from tidemill.wire.primitives import Reader

TOPIC, PASSING = "orders", "passing"
ROUNDS = 8
SEEDS = range(12)
FETCHES_PER_S = 4
"""Two come of waits that end without news, one of a topic that came or went."""


class Story:
    """One run: rounds of records and of one event each, drawn from the seed."""

    def __init__(self, world: SimWorld, admin: Admin, producer: Producer) -> None:
        self._world = world
        self._admin = admin
        self._producer = producer
        self._rng = SeededRng(world.rng.below(1 << 62))
        self._passing_exists = False
        self.acked: dict[int, bytes] = {}

    async def run(self, reader: StockReader) -> None:
        events: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._toggle_passing,
            lambda: self._delete_records(reader),
        ]
        for _ in range(ROUNDS):
            await self._produce()
            await eventually(lambda: reader.position >= len(self.acked))
            await self._delete_records(reader)
            await events[self._rng.below(len(events))]()
            # At once half of the time: records then come before the reader is back.
            await asyncio.sleep(self._rng.below(2) * self._rng.below(30) / 10)
        await self._produce()
        await eventually(lambda: reader.position >= len(self.acked))

    async def _produce(self) -> None:
        for _ in range(1 + self._rng.below(5)):
            value = b"%d" % len(self.acked)
            delivery = await retry_until_ready(
                lambda value=value: self._producer.send(TOPIC, value, partition=0)
            )
            self.acked[await delivery.offset()] = value

    async def _delete_records(self, reader: StockReader) -> None:
        """As retention does: all or some of what the reader has read."""
        offset = reader.position - self._rng.below(2)
        if offset > 0:
            await retry_until_ready(lambda: self._admin.delete_records(TOPIC, {0: offset}))

    async def _kill(self) -> None:
        self._world.crash(0, power_loss=False)
        await self._world.restart(0)

    async def _toggle_passing(self) -> None:
        if self._passing_exists:
            await retry_until_ready(lambda: self._admin.delete_topics([PASSING]))
        else:
            await retry_until_ready(lambda: self._admin.create_topic(PASSING, partitions=1))
        self._passing_exists = not self._passing_exists


def tell(seed: int, **values: object) -> StockReader:
    """Run the story of this seed and check what the reader has read."""

    async def main(world: SimWorld) -> StockReader:
        await world.start_broker(0)
        net, bootstrap = world.client_net(), world.bootstrap
        async with (
            ClusterClient(net, bootstrap) as own,
            ClusterClient(net, bootstrap) as admin,
            ClusterClient(net, bootstrap) as producing,
            Producer(producing, world.clock, idempotent=True) as producer,
        ):
            await retry_until_ready(lambda: Admin(admin).create_topic(TOPIC, partitions=1))
            reader, story = StockReader(own, TOPIC, PASSING), Story(world, Admin(admin), producer)
            started_s = world.loop.time()
            reading = asyncio.ensure_future(reader.run())
            running = asyncio.ensure_future(story.run(reader))
            await asyncio.wait({reading, running}, return_when=asyncio.FIRST_COMPLETED)
            took_s = world.loop.time() - started_s
            for task in (reading, running):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        assert reader.read == story.acked, f"skipped {story.acked.keys() - reader.read.keys()}"
        fetches_max = len(story.acked) + FETCHES_PER_S * took_s
        assert reader.fetches <= fetches_max, f"{reader.fetches} fetches in {took_s:.0f} s"
        return reader

    return SimWorld(seed, values=values).run(main)


def first_finding(**values: object) -> str:
    """What the first seed that fails says."""
    for seed in SEEDS:
        try:
            tell(seed, **values)
        except AssertionError as finding:
            return str(finding)
    return "nothing"


@pytest.mark.parametrize("seed", SEEDS)
def test_T35_T37_a_reader_gets_every_record_and_its_fetches_wait(seed):
    tell(seed)


def test_the_stories_hold_what_the_planted_bugs_need():
    """A topic that goes while it is read is refused; without this nothing is shown about it."""
    assert sum(tell(seed).refusals for seed in SEEDS) > 0


def test_planted_a_deleted_epoch_that_counts_as_unknown_is_found(monkeypatch):
    find_end = offset_for_leader_epoch._find_end

    def unknown(
        context: DataContext, name: str, wanted: OffsetForLeaderPartition
    ) -> EpochEndOffset:
        entry = find_end(context, name, wanted)
        partition = context.services.replicas.find(name, wanted.partition)
        if partition is not None and wanted.leader_epoch < partition.log.epochs.oldest:
            entry.leader_epoch = entry.end_offset = -1
        return entry

    monkeypatch.setattr(offset_for_leader_epoch, "_find_end", unknown)
    assert "skipped" in first_finding()


def test_planted_a_session_that_forgets_nothing_is_found(monkeypatch):
    read = FetchRequest.read

    def forgetful(reader: Reader, version: int) -> FetchRequest:
        request = read(reader, version)
        request.forgotten_topics_data = []
        return request

    monkeypatch.setattr(FetchRequest, "read", staticmethod(forgetful))
    assert "forgotten" in first_finding()


def test_planted_errors_that_end_every_wait_are_found():
    """Without sessions the broker cannot know which errors it has told."""
    assert "fetches" in first_finding(**{"fetch.sessions.max": 0})
