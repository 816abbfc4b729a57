"""Disks that fill up to the reserve: records are refused, and everything else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from tests.sim.replicas import eventually, leader_of, replica, replicas_agree
from tests.sim.three_brokers import IDS, SEEDS
from tidemill.client.admin.group_offsets import GroupOffsets
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.sim.world import SimWorld

BIG, SMALL = TopicPartition("big", 0), TopicPartition("small", 0)
CAPACITY_BYTES = 40 * MIB
RESERVE_BYTES = 4 * MIB
VALUE = b"x" * 100_000
GIVE_UP_S = 2.0
LARGE = 1 << 40


@asynccontextmanager
async def started(
    world: SimWorld, broker_ids: Iterable[int]
) -> AsyncIterator[tuple[ClusterClient, Producer]]:
    """Brokers that serve, and what a test asks them by."""
    for broker_id in broker_ids:
        await world.start_broker(broker_id)
    async with (
        ClusterClient(world.client_net(), world.bootstrap) as cluster,
        Producer(cluster, world.clock) as producer,
    ):
        yield cluster, producer


async def is_refused(cluster: ClusterClient, world: SimWorld, to: TopicPartition) -> bool:
    """Whether a record is refused for longer than a producer waits here."""
    try:
        async with Producer(cluster, world.clock, delivery_timeout_s=GIVE_UP_S) as producer:
            await (await producer.send(to.topic, VALUE, partition=0)).offset()
    except KafkaError:
        return True
    return False


async def fill(cluster: ClusterClient, world: SimWorld) -> None:
    """Produce until it is refused."""
    for _ in range(CAPACITY_BYTES // len(VALUE)):
        if await is_refused(cluster, world, BIG):
            return
    raise AssertionError("records were never refused")


def free_bytes(world: SimWorld, broker_id: int) -> int:
    return world.disk(broker_id).space("/").usable_bytes


def leave_free(world: SimWorld, broker_id: int, one_of: int) -> None:
    """Make the disk so small that this part of it is free; the reserve is a tenth."""
    world.disk(broker_id).set_capacity(LARGE)
    used_bytes = LARGE - free_bytes(world, broker_id)
    world.disk(broker_id).set_capacity(used_bytes * one_of // (one_of - 1))


@SEEDS
def test_R12_a_disk_that_records_have_filled_still_deletes_the_topic_that_makes_room(seed, caplog):
    async def main(world: SimWorld) -> None:
        for broker_id in IDS:
            await world.start_broker(broker_id)
            world.disk(broker_id).set_capacity(CAPACITY_BYTES)
        net, bootstrap = world.client_net(), world.bootstrap
        async with ClusterClient(net, bootstrap) as cluster, ClusterClient(net, bootstrap) as own:
            admin = Admin(own)
            for one in (BIG, SMALL):
                await admin.create_topic(one.topic, partitions=1, replication=3)
            group = GroupOffsets(own, "workers")
            await group.commit({BIG: 0})
            await fill(cluster, world)
            assert await is_refused(cluster, world, SMALL)
            for broker_id in IDS:
                room = free_bytes(world, broker_id) - RESERVE_BYTES
                assert -RESERVE_BYTES // 4 <= room < 2 * len(VALUE)
            assert replicas_agree(world, IDS, BIG)  # a leader stops before its followers do
            await group.commit({BIG: 7})
            await admin.create_topic("late", partitions=1, replication=3)
            await asyncio.sleep(61.0)  # a checkpoint is written
            await admin.delete_topics([BIG.topic])
            await eventually(
                lambda: min(free_bytes(world, one) for one in IDS) > CAPACITY_BYTES / 2
            )
            await asyncio.sleep(2.0)
            assert not await is_refused(cluster, world, SMALL)
            for broker_id in IDS:
                assert not world.broker(broker_id).telemetry.disk_refuses_records

    world = SimWorld(seed, values={"log.segment.bytes": 4 * MIB})
    world.run(main)
    said = [record.getMessage() for record in caplog.records]
    assert 1 <= sum("No space left for records" in line for line in said) <= len(IDS)
    assert not any("producers are refused" in line or "failed" in line for line in said)


def test_R12_a_follower_at_the_reserve_leaves_the_in_sync_set_and_comes_back():
    async def main(world: SimWorld) -> None:
        async with started(world, IDS) as (cluster, producer):
            await Admin(cluster).create_topic(SMALL.topic, partitions=1, replication=3)
            await eventually(lambda: replicas_agree(world, IDS, SMALL))
            leader = leader_of(world, IDS, SMALL)
            full = next(one for one in IDS if one != leader)
            world.disk(full).take_space(CAPACITY_BYTES)  # by files of somebody else
            world.disk(full).set_capacity(CAPACITY_BYTES + RESERVE_BYTES // 2)
            await asyncio.sleep(2.0)
            await (await producer.send(SMALL.topic, VALUE, partition=0)).offset()
            assert full not in replica(world, leader, SMALL).isr
            assert replica(world, full, SMALL).log.log_end_offset == 0
            world.disk(full).set_capacity(None)
            await eventually(lambda: full in replica(world, leader, SMALL).isr)
            assert replicas_agree(world, IDS, SMALL)

    SimWorld(1).run(main)


def test_R12_a_follower_without_room_hears_what_was_deleted_and_comes_back():
    async def main(world: SimWorld) -> None:
        async with started(world, IDS) as (cluster, producer):
            admin = Admin(cluster)
            configs = {"segment.bytes": str(MIB // 4)}
            await admin.create_topic(BIG.topic, partitions=1, replication=3, configs=configs)

            async def produce(count: int) -> None:
                for _ in range(count):
                    await (await producer.send(BIG.topic, VALUE, partition=0)).offset()

            await produce(50)
            await eventually(lambda: replicas_agree(world, IDS, BIG))
            led = replica(world, leader_of(world, IDS, BIG), BIG)
            full = next(one for one in IDS if one != led.broker_id)
            space = world.disk(full).space("/")
            used_bytes = space.total_bytes - space.usable_bytes
            world.disk(full).set_capacity(used_bytes + 5 * len(VALUE))
            await asyncio.sleep(2.0)
            await produce(10)
            await eventually(lambda: full not in led.isr)
            end = replica(world, full, BIG).log.log_end_offset
            assert end < led.log.log_end_offset
            await admin.delete_records(BIG.topic, {0: end - 1})
            await asyncio.sleep(700.0)  # until retention has removed the segments
            assert full in led.isr

    SimWorld(1).run(main)


def test_R12_a_damaged_segment_is_mended_once_there_is_room_for_another_one():
    async def main(world: SimWorld) -> None:
        async with started(world, IDS) as (cluster, producer):
            configs = {"segment.bytes": str(8 * MIB)}
            await Admin(cluster).create_topic(
                BIG.topic, partitions=1, replication=3, configs=configs
            )
            for _ in range(120):
                await (await producer.send(BIG.topic, VALUE, partition=0)).offset()
            await eventually(lambda: replicas_agree(world, IDS, BIG))
            full = next(one for one in IDS if one != leader_of(world, IDS, BIG))
            at, disk = replica(world, full, BIG), world.disk(full)
            leave_free(world, full, one_of=8)
            await asyncio.sleep(2.0)
            assert isinstance(at.log, FilePartitionLog)
            segment = at.log.segments.holding(0)
            disk.flip_bit(segment.path, segment.size_bytes - 9)
            world.broker(full).directory.doubt([segment.path])
            for _ in range(2_000):
                await asyncio.sleep(0.01)
                assert free_bytes(world, full) > at.room.reserve_bytes
            disk.set_capacity(None)
            await eventually(lambda: world.broker(full).telemetry.damage_mended == 1)

    SimWorld(1).run(main)


@pytest.mark.parametrize("broker_ids", [[0], IDS])
def test_R12_a_delayed_record_does_not_keep_full_disks_full(broker_ids):
    async def main(world: SimWorld) -> None:
        async with started(world, broker_ids) as (cluster, producer):
            configs = {
                "retention.ms": "300000",
                "segment.bytes": "262144",
                "min.insync.replicas": str(len(broker_ids) // 2 + 1),
            }
            await Admin(cluster).create_topic(
                SMALL.topic, partitions=1, replication=len(broker_ids), configs=configs
            )
            later = [("tidemill.delay-ms", b"1500000")]
            await (await producer.send(SMALL.topic, b"later", partition=0, headers=later)).offset()
            for _ in range(20):
                await (await producer.send(SMALL.topic, VALUE, partition=0)).offset()
            await eventually(lambda: replicas_agree(world, broker_ids, SMALL))
            for broker_id in broker_ids:
                leave_free(world, broker_id, one_of=16)
            await asyncio.sleep(2.0)
            at = replica(world, leader_of(world, broker_ids, SMALL), SMALL)
            assert at.room.is_refusing
            await asyncio.sleep(1_300.0)
            for broker_id in broker_ids:
                one = replica(world, broker_id, SMALL)
                assert one.log.log_start_offset > 0
                assert not one.room.is_refusing
            await (await producer.send(SMALL.topic, VALUE, partition=0)).offset()
            await asyncio.sleep(600.0)
            assert world.broker(at.broker_id).telemetry.holds_released == 1

    SimWorld(0).run(main)
