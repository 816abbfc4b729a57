"""A simulated cluster of three with one replicated partition, for stories."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.sim.clients import drain, retry_until_ready
from tests.sim.history import History
from tests.sim.replicas import eventually, leader_of, log_bytes, replica, replicas_agree
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer, RecordDelivery
from tidemill.core.ids import TopicPartition
from tidemill.testing.sim.world import SimWorld, host_name

__all__ = ["IDS", "ORDERS", "SEEDS", "Bench", "run"]

IDS = (0, 1, 2)
ORDERS = TopicPartition("orders", 0)
SEEDS = pytest.mark.parametrize("seed", range(3))


class Bench:
    """A cluster of three with one replicated partition, and a client of it."""

    def __init__(self, world: SimWorld, cluster: ClusterClient, producer: Producer) -> None:
        self.world = world
        self.cluster = cluster
        self.producer = producer
        self.history = History()
        self._sent = 0

    @property
    def leader(self) -> int:
        return leader_of(self.world, IDS, ORDERS)

    @property
    def followers(self) -> list[int]:
        return [broker_id for broker_id in IDS if broker_id != self.leader]

    async def begin(self, producer: Producer | None = None) -> tuple[bytes, RecordDelivery]:
        """Send one record; returns its value and the pending acknowledgement."""
        self._sent += 1
        value = self.history.value(1, self._sent)
        chosen = producer or self.producer
        return value, await retry_until_ready(
            lambda: chosen.send(ORDERS.topic, value, key=value, partition=0)
        )

    async def send(self, count: int) -> None:
        """Send records one after the other, each acknowledged by all in-sync replicas."""
        for _ in range(count):
            value, delivery = await self.begin()
            self.history.sent(ORDERS, await delivery.offset(), value)

    async def check(self) -> None:
        """Check I1, I4, I5, I10 and I16 after everything has recovered."""
        await eventually(lambda: replicas_agree(self.world, IDS, ORDERS))
        self.history.check_final(ORDERS, await drain(self.world, ORDERS))
        assert len({log_bytes(replica(self.world, i, ORDERS)) for i in IDS}) == 1

    def cut_off(self, broker_id: int) -> None:
        """Cut a broker off from the others; clients and the store still reach it."""
        others = [host_name(other) for other in IDS if other != broker_id]
        self.world.net.isolate(host_name(broker_id), others)


def run(
    scenario: Callable[[Bench], Awaitable[None]],
    seed: int,
    *,
    configs: dict[str, str] | None = None,
) -> SimWorld:
    async def main(world: SimWorld) -> None:
        for broker_id in IDS:
            await world.start_broker(broker_id)
        net, bootstrap = world.client_net(), world.bootstrap
        async with (
            ClusterClient(net, bootstrap) as admin,
            ClusterClient(net, bootstrap) as cluster,
            Producer(cluster, world.clock, idempotent=True, delivery_timeout_s=300.0) as producer,
        ):
            create = Admin(admin).create_topic
            await create(ORDERS.topic, partitions=1, replication=3, configs=configs)
            await eventually(lambda: replicas_agree(world, IDS, ORDERS))
            await scenario(Bench(world, cluster, producer))

    world = SimWorld(seed, values={"log.segment.bytes": 4_096})
    world.run(main)
    return world
