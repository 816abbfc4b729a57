"""Topics that are deleted while one of three simulated brokers is down."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from tests.sim.replicas import eventually
from tidemill.client.admin.group_offsets import GroupOffsets
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.ids import TopicPartition
from tidemill.metadata.image.head import page_path
from tidemill.metadata.image.page import page_of
from tidemill.metadata.store.coord import Put
from tidemill.testing.sim.world import SimWorld
from tidemill.upkeep import stray_logs

IDS = (0, 1, 2)
DELAY_S = 5.0


def _logs(world: SimWorld, broker_id: int) -> list[str]:
    """The log directories on a broker's disk."""
    root = f"{world.broker(broker_id).config.data_dir}/logs"
    return [name for name in world.disk(broker_id).list_names(root) if name.endswith("-0")]


def test_I34_a_broker_that_was_down_removes_the_logs_of_topics_deleted_meanwhile(monkeypatch):
    monkeypatch.setattr(stray_logs, "REMOVAL_DELAY_S", DELAY_S)

    async def main(world: SimWorld) -> None:
        for broker_id in IDS:
            await world.start_broker(broker_id)
        async with ClusterClient(world.client_net(), world.bootstrap) as cluster:
            admin = Admin(cluster)
            for name in ("gone", "kept"):
                await admin.create_topic(name, partitions=1, replication=3)
            await eventually(lambda: len(_logs(world, 2)) == 2)
            await world.stop_broker(2)
            await admin.delete_topics(["gone"])
        await world.start_broker(2)
        await asyncio.sleep(DELAY_S / 2)
        assert _logs(world, 2) == ["gone-0", "kept-0"]
        await eventually(lambda: _logs(world, 2) == ["kept-0"])
        assert _logs(world, 0) == ["kept-0"]

    SimWorld(1).run(main)


def return_to_a_bad_page() -> None:
    """A broker that comes back cannot know whose its logs are, while a page is damaged (H6)."""

    async def main(world: SimWorld) -> None:
        for broker_id in IDS:
            await world.start_broker(broker_id)
        async with ClusterClient(world.client_net(), world.bootstrap) as cluster:
            await Admin(cluster).create_topic("kept", partitions=1, replication=3)
        await eventually(lambda: _logs(world, 2) == ["kept-0"])
        await world.stop_broker(2)
        path = page_path(page_of(world.broker(0).cluster.image.topics["kept"].topic_id))
        session, page = world.coord.session(), world.coord.get(path)
        assert page is not None
        world.coord.multi(session, [Put(path, b"garbage", page.version)])
        await world.start_broker(2)
        await asyncio.sleep(2 * DELAY_S)
        assert _logs(world, 2) == ["kept-0"]

    with patch.object(stray_logs, "REMOVAL_DELAY_S", DELAY_S):
        SimWorld(1).run(main)


def test_H6_no_log_is_removed_while_a_page_of_the_metadata_is_damaged():
    return_to_a_bad_page()


def test_H6_I28_offsets_stay_while_a_page_of_the_metadata_is_damaged():
    """A coordinator that starts meanwhile does not know the topic, which may well be there."""

    async def main(world: SimWorld) -> None:
        await world.start_broker(0)
        async with ClusterClient(world.client_net(), world.bootstrap) as cluster:
            await Admin(cluster).create_topic("kept", partitions=1, replication=1)
            kept = TopicPartition("kept", 0)
            await GroupOffsets(cluster, "g").commit({kept: 7})
            path = page_path(page_of(world.broker(0).cluster.image.topics["kept"].topic_id))
            await world.stop_broker(0)
            session, page = world.coord.session(), world.coord.get(path)
            assert page is not None
            world.coord.multi(session, [Put(path, b"garbage", page.version)])
            await world.start_broker(0)
            await asyncio.sleep(2 * DELAY_S)
            assert "kept" not in world.broker(0).cluster.image.topics
            committed = await GroupOffsets(cluster, "g").fetch([kept])
            assert committed[kept].offset == 7

    SimWorld(1, values={"offsets.retention.check.interval.ms": 1_000}).run(main)


def test_H4_a_topic_that_is_deleted_while_it_is_flushed_does_not_fail_the_directory():
    async def main(world: SimWorld) -> None:
        for broker_id in IDS:
            await world.start_broker(broker_id)
        async with (
            ClusterClient(world.client_net(), world.bootstrap) as cluster,
            Producer(cluster, world.clock, acks=1) as producer,
        ):
            admin = Admin(cluster)
            await admin.create_topic("kept", partitions=1, replication=3)
            for number in range(5):
                name = f"gone-{number}"
                await admin.create_topic(name, partitions=1, replication=3)
                await (await producer.send(name, b"x", partition=0)).offset()
                for broker_id in IDS:
                    world.disk_delays_s[broker_id] = 0.3
                kept = await producer.send("kept", b"x", partition=0)
                await asyncio.sleep(0.1)
                await admin.delete_topics([name])
                await kept.offset()
                world.disk_delays_s.clear()
            await asyncio.sleep(5.0)
            await (await producer.send("kept", b"x", partition=0)).offset()
        for broker_id in IDS:
            assert all(not copy.offline for copy in world.broker(broker_id).replicas)

    SimWorld(1).run(main)
