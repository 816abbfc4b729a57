"""Brokers of two versions in one cluster: they live together at the old levels, until all can."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.clients import drain
from tests.sim.history import History
from tests.sim.replicas import eventually
from tidemill.client.admin.cluster_admin import take_cluster_snapshot
from tidemill.client.admin.feature_admin import (
    LevelDirection,
    change_levels,
    describe_features,
)
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.metadata.features.feature_levels import OLDER_SOFTWARE, TIDEMILL_VERSION
from tidemill.metadata.image import nodes
from tidemill.metadata.store.coord import Put
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.generated.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

IDS = (0, 1, 2)
ORDERS = TopicPartition("orders", 0)
RAISE = {TIDEMILL_VERSION: 2}


async def send(producer: Producer, history: History, count: int) -> None:
    for _ in range(count):
        value = history.value(1, len(history.invoked))
        delivery = await producer.send(ORDERS.topic, value, partition=0)
        history.sent(ORDERS, await delivery.offset(), value)


async def change_at(client: ClusterClient, broker_id: int, level: int, way: LevelDirection) -> None:
    change = FeatureUpdateKey(
        feature="transaction.version", max_version_level=level, upgrade_type=way.value
    )
    request = UpdateFeaturesRequest(feature_updates=[change])
    answer = await client.ask_broker(broker_id, request, UpdateFeaturesResponse)
    assert answer.error_code == ErrorCode.NONE, answer.error_message


async def replace_settings(world: SimWorld, value: bytes) -> bytes:
    """Put something else in their place, as a person or a broken disk does; what was there."""
    node = world.coord.get(nodes.SETTINGS)
    assert node is not None
    session = world.coord.session()
    await session.start()
    await session.multi([Put(nodes.SETTINGS, value, node.version)])
    await session.close()
    return node.value


def in_sync(world: SimWorld) -> set[int]:
    (partition,) = world.broker(0).cluster.image.topics[ORDERS.topic].partitions
    return set(partition.isr)


def test_a_rolling_upgrade_raises_the_level_after_the_last_broker_and_not_before():
    async def main(world: SimWorld) -> None:
        history = History()
        for broker_id in IDS:
            await world.start_broker(broker_id, software=OLDER_SOFTWARE)
        async with (
            ClusterClient(world.client_net(), world.bootstrap) as client,
            Producer(client, world.clock, idempotent=True) as producer,
        ):
            await Admin(client).create_topic(ORDERS.topic, partitions=1, replication=3)
            await send(producer, history, 10)
            for broker_id in IDS:
                with pytest.raises(KafkaError) as refused:
                    await change_levels(client, RAISE, LevelDirection.UP)
                assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
                await world.stop_broker(broker_id)
                await world.start_broker(broker_id)
                await eventually(lambda: in_sync(world) == set(IDS))
                await send(producer, history, 10)
                assert (await describe_features(client)).level_of(TIDEMILL_VERSION) == 1
            await change_levels(client, RAISE, LevelDirection.UP, dry_run=True)
            assert (await describe_features(client)).level_of(TIDEMILL_VERSION) == 1
            await change_levels(client, RAISE, LevelDirection.UP)
            assert (await describe_features(client)).level_of(TIDEMILL_VERSION) == 2
            await send(producer, history, 10)
        history.check_final(ORDERS, await drain(world, ORDERS))

    SimWorld(3).run(main)


def test_a_broker_that_comes_back_too_old_stays_fenced_and_the_partitions_go_on():
    async def main(world: SimWorld) -> None:
        history = History()
        for broker_id in IDS:
            await world.start_broker(broker_id)
        async with (
            ClusterClient(world.client_net(), world.bootstrap) as client,
            Producer(client, world.clock, idempotent=True) as producer,
        ):
            await Admin(client).create_topic(ORDERS.topic, partitions=1, replication=3)
            await send(producer, history, 10)
            await world.stop_broker(2)
            await world.start_broker(2, software=OLDER_SOFTWARE)
            await send(producer, history, 10)
            await eventually(lambda: in_sync(world) == {0, 1})
            assert world.broker(2).cluster.lease.fenced
            found = await take_cluster_snapshot(client)
            why = "broker 2 runs an older version and lacks tidemill.version 2: upgrade it"
            assert found.fenced == {2: why}
            await world.stop_broker(2)
            await world.start_broker(2)
            await eventually(lambda: in_sync(world) == set(IDS))
            await send(producer, history, 10)
        history.check_final(ORDERS, await drain(world, ORDERS))

    SimWorld(4).run(main)


def test_whoever_changes_a_level_at_any_broker_finds_it_there_at_once():
    async def main(world: SimWorld) -> None:
        for broker_id in IDS:
            await world.start_broker(broker_id)
        async with ClusterClient(world.client_net(), world.bootstrap) as client:
            await client.refresh([])
            for broker_id, level in zip(IDS, (1, 2, 0), strict=True):
                way = LevelDirection.UP if level == 2 else LevelDirection.DOWN
                await change_at(client, broker_id, level, way)
                image = world.broker(broker_id).cluster.image
                assert image.features.level_of("transaction.version") == level

    SimWorld(5).run(main)


def test_brokers_that_cannot_read_the_levels_serve_nobody_until_these_are_put_back():
    async def main(world: SimWorld) -> None:
        history = History()
        for broker_id in IDS:
            await world.start_broker(broker_id)
        async with (
            ClusterClient(world.client_net(), world.bootstrap) as client,
            Producer(client, world.clock, idempotent=True) as producer,
        ):
            await Admin(client).create_topic(ORDERS.topic, partitions=1, replication=3)
            await send(producer, history, 10)
        for broker_id in IDS:
            await world.stop_broker(broker_id)
        good = await replace_settings(world, b"?")
        for broker_id in IDS:
            await world.start_broker(broker_id)
        await asyncio.sleep(60)
        for broker_id in IDS:
            assert world.broker(broker_id).cluster.lease.fenced
        await replace_settings(world, good)
        await eventually(lambda: in_sync(world) == set(IDS))
        history.check_final(ORDERS, await drain(world, ORDERS))

    SimWorld(6).run(main)
