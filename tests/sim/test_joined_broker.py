"""A third broker joins a simulated cluster: whole brokers, with their loops and connections."""

from __future__ import annotations

from tests.sim.clients import drain
from tests.sim.history import History
from tests.sim.replicas import eventually
from tests.sim.three_brokers import SEEDS
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.ids import TopicPartition
from tidemill.metadata.cluster import Cluster
from tidemill.testing.sim.world import SimWorld

LOGS = [TopicPartition("orders", index) for index in range(9)]


def controller(world: SimWorld) -> Cluster:
    (found,) = [one.cluster for one in world.up_brokers().values() if one.cluster.is_controller]
    return found


def has_its_share(world: SimWorld) -> bool:
    image = controller(world).image
    partitions = image.topics["orders"].partitions
    held = sum(2 in one.replicas for one in partitions)
    is_moving = any(one.is_moving for one in partitions)
    return held == len(LOGS) * 2 // 3 and not is_moving and not image.members[2].awaits_share


async def send(world: SimWorld, history: History, partition: TopicPartition, number: int) -> None:
    async with (
        ClusterClient(world.client_net(), world.bootstrap) as cluster,
        Producer(cluster, world.clock, idempotent=True) as producer,
    ):
        value = history.value(number, 1) + bytes(1_000 * number)
        delivery = await producer.send(partition.topic, value, partition=partition.partition)
        history.sent(partition, await delivery.offset(), value)


def join_and_take_over(seed: int, *, crashes: bool) -> None:
    async def main(world: SimWorld) -> None:
        for broker_id in (0, 1):
            await world.start_broker(broker_id)
        async with ClusterClient(world.client_net(), world.bootstrap) as client:
            await Admin(client).create_topic("orders", partitions=len(LOGS), replication=2)
        history = History()
        for number, one in enumerate(LOGS, start=1):
            await send(world, history, one, number)
        await world.start_broker(2)
        if crashes:
            await eventually(
                lambda: any(
                    one.adding for one in controller(world).image.topics["orders"].partitions
                )
            )
            office = controller(world).broker_id
            world.crash(office, power_loss=False)
            await world.restart(office)
        await eventually(lambda: has_its_share(world))
        sizes = controller(world).log_sizes.try_sizes()
        leaders = {
            name: world.broker(one.leader).replicas.find(*name)
            for name, one in zip(
                LOGS, controller(world).image.topics["orders"].partitions, strict=True
            )
        }
        assert sizes == {name: one.log.size_bytes for name, one in leaders.items()}
        for one in LOGS:
            history.check_final(one, await drain(world, one))

    SimWorld(seed).run(main)


@SEEDS
def test_a_broker_that_joins_gets_its_share_and_the_controller_knows_the_sizes(seed):
    join_and_take_over(seed, crashes=False)


@SEEDS
def test_a_broker_that_joins_gets_its_share_although_the_controller_is_killed_meanwhile(seed):
    join_and_take_over(seed, crashes=True)
