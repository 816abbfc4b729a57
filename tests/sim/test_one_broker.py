"""Single scenarios of one broker on simulated seams."""

from __future__ import annotations

import asyncio
import weakref

from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.testing.sim.world import SimWorld

TOPIC = "orders"


def test_I34_a_topic_created_again_during_a_flush_of_its_old_log_is_served():
    async def main(world: SimWorld) -> None:
        await world.start_broker(0)
        net, bootstrap = world.client_net(), world.bootstrap
        async with ClusterClient(net, bootstrap) as own, ClusterClient(net, bootstrap) as cluster:
            admin = Admin(own)
            await admin.create_topic(TOPIC, partitions=1)
            async with Producer(cluster, world.clock) as producer:
                await (await producer.send(TOPIC, b"warm-up")).offset()
                world.disk_delays_s[0] = 0.5
                delivery = await producer.send(TOPIC, b"flushed while the topic goes")
                await asyncio.sleep(0.05)
                await admin.delete_topics([TOPIC])
                await admin.create_topic(TOPIC, partitions=1)
                assert await delivery.offset() == 0

    SimWorld(1).run(main)


def test_a_broker_that_lost_its_session_registers_and_serves_again():
    async def main(world: SimWorld) -> None:
        await world.start_broker(0)
        net, bootstrap = world.client_net(), world.bootstrap
        async with (
            ClusterClient(net, bootstrap) as cluster,
            Producer(cluster, world.clock, idempotent=True) as producer,
        ):
            await (await producer.send(TOPIC, b"before")).offset()
            epoch = world.broker(0).cluster.broker_epoch
            world.session(0).expire()
            await asyncio.sleep(5.0)
            assert world.broker(0).cluster.broker_epoch > epoch
            assert world.broker(0).cluster.is_controller
            await (await producer.send(TOPIC, b"after")).offset()

    SimWorld(1, values={"num.partitions": 1}).run(main)


def test_a_clean_restart_scans_nothing_and_keeps_the_leader_epoch():
    async def main(world: SimWorld) -> None:
        await world.start_broker(0)
        async with (
            ClusterClient(world.client_net(), world.bootstrap) as cluster,
            Producer(cluster, world.clock) as producer,
        ):
            for _ in range(20):
                await (await producer.send(TOPIC, b"x", partition=0)).offset()
            before = world.broker(0).replicas.find(TOPIC, 0)
            await world.stop_broker(0)
            await world.start_broker(0)
            after = world.broker(0).replicas.find(TOPIC, 0)
            assert before is not None
            assert after is not None
            assert after.leader_epoch == before.leader_epoch
            assert after.high_watermark == before.high_watermark == 20

    SimWorld(1, values={"num.partitions": 1}).run(main)


def test_nothing_is_kept_of_brokers_that_ended_after_two_burials():
    async def main(world: SimWorld) -> None:
        ended = []
        await world.start_broker(0)
        for end in (world.crash, world.stop_broker):
            ended.append(weakref.ref(world.broker(0)))
            done = end(0)
            if done is not None:
                await done
            await world.restart(0)
        world.loop.bury()
        world.loop.bury()
        assert [one() for one in ended] == [None, None]

    SimWorld(1).run(main)
