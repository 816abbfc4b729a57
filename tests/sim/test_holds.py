"""Delayed records on three brokers that are killed: none is lost, and none comes twice.

A round sends some records, cancels some that are held, and kills a broker, as the seed has it. When
all is due, the log must show every acknowledged record that was not cancelled in time exactly once.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.clients import drain, retry_until_ready
from tests.sim.replicas import eventually, replica, replicas_agree
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.records import Header

TOPIC = TopicPartition("orders", 0)
IDS = (0, 1, 2)
ROUNDS = 5
SEEDS = range(6)
DELAY_MS_MAX = 20_000


class DelayStory:
    """One run: what was acknowledged, and what was cancelled."""

    def __init__(self, world: SimWorld, producer: Producer) -> None:
        self._world = world
        self._producer = producer
        self._rng = SeededRng(world.rng.below(1 << 62))
        self.sent: dict[int, bytes] = {}
        """By ticket: what must come, once."""
        self.cancelled: list[bytes] = []
        """What must not come."""

    async def run(self) -> None:
        for _ in range(ROUNDS):
            for _ in range(2 + self._rng.below(6)):
                await self._send()
            if self.sent and self._rng.below(2):
                await self._cancel()
            if self._rng.below(2):
                await self._crash()
            await asyncio.sleep(self._rng.below(4_000) / 1000)
        await asyncio.sleep(DELAY_MS_MAX / 1000)
        # Steady time starts again where the newest stamp is, so failovers make late.
        await eventually(lambda: replicas_agree(self._world, IDS, TOPIC) and self._pending() == 0)

    def _pending(self) -> int:
        holds = [replica(self._world, broker_id, TOPIC).holds for broker_id in IDS]
        return max(one.book.pending if one.is_whole else 1 for one in holds if one is not None)

    async def _send(self) -> None:
        value = b"%d" % len(self.sent) + b"-%d" % self._rng.below(1 << 30)
        headers: list[Header] = []
        if self._rng.below(4):
            headers = [("tidemill.delay-ms", b"%d" % self._rng.below(DELAY_MS_MAX))]
        self.sent[await self._produce(value, headers)] = value

    async def _cancel(self) -> None:
        ticket = list(self.sent)[self._rng.below(len(self.sent))]
        headers = [("tidemill.command", b"cancel"), ("tidemill.target", b"%d" % ticket)]
        world = self._world
        refusals: list[ErrorCode] = []
        try:
            async with (
                ClusterClient(world.client_net("cancels"), world.bootstrap) as cluster,
                Producer(cluster, world.clock, delivery_timeout_s=300.0) as producer,
            ):
                await self._produce(b"", headers, producer)
        except KafkaError as error:
            refusals.append(error.code)
        if not refusals:
            self.cancelled.append(self.sent.pop(ticket))
        # Delivered already, or never held.
        assert set(refusals) <= {ErrorCode.INVALID_RECORD}

    async def _produce(
        self, value: bytes, headers: list[Header], producer: Producer | None = None
    ) -> int:
        by = producer or self._producer
        delivery = await retry_until_ready(
            lambda: by.send(TOPIC.topic, value, partition=0, headers=headers)
        )
        return int(await delivery.offset())

    async def _crash(self) -> None:
        broker_id = IDS[self._rng.below(len(IDS))]
        self._world.crash(broker_id, power_loss=self._rng.below(2) == 0)
        await asyncio.sleep(self._rng.below(8_000) / 1000)
        await self._world.restart(broker_id)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_I32_every_delayed_record_comes_once(seed):
    async def main(world: SimWorld) -> None:
        for broker_id in IDS:
            await world.start_broker(broker_id)
        net, bootstrap = world.client_net(), world.bootstrap
        async with (
            ClusterClient(net, bootstrap) as admin,
            ClusterClient(net, bootstrap) as producing,
            Producer(producing, world.clock, idempotent=True, delivery_timeout_s=300.0) as producer,
        ):
            keys = {"min.insync.replicas": "2"}
            create = Admin(admin).create_topic
            await create(TOPIC.topic, partitions=1, replication=3, configs=keys)
            await eventually(lambda: replicas_agree(world, IDS, TOPIC))
            story = DelayStory(world, producer)
            await story.run()
        found = await drain(world, TOPIC)
        assert sorted(one.value or b"" for one in found) == sorted(story.sent.values())

    SimWorld(seed, values={"log.segment.bytes": 4_096}).run(main)
