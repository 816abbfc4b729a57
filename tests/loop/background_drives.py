"""What a broker does on its own: start, replay, retention, compaction, truncation, shutdown."""

from __future__ import annotations

import asyncio

from tests.loop.coordinator_drives import commit, find_coordinator
from tests.loop.stage import WIDE, staged
from tests.sim.replicas import eventually, leader_of, replica, replicas_agree
from tidemill.core.ids import TopicPartition
from tidemill.testing.sim.world import SimWorld, host_name

SEGMENTS = 300
INDEXED_BATCHES = 1_200
"""Of 9 KB each, of which an index has to be built again: one read for each."""
LARGE_BATCHES = 24
"""Nearly a megabyte each, in the tail that a follower cuts."""
MINUTES_S = 600.0
ORDERS = TopicPartition("orders", 0)
IDS = (0, 1, 2)


async def retention_of_many_segments(world: SimWorld) -> None:
    await world.start_broker(0)
    async with staged(world) as stage:
        await stage.create("old", segment_bytes=1024, retention_bytes=1)
        for _ in range(SEGMENTS):
            await stage.produce("old", size=900)
        await asyncio.sleep(MINUTES_S)
        log = replica(world, 0, TopicPartition("old", 0)).log
        assert log.log_start_offset > SEGMENTS - 10
    await world.stop_broker(0)


async def removal_of_many_logs(world: SimWorld) -> None:
    """The files of deleted topics are unlinked long after the answer."""
    await world.start_broker(0)
    async with staged(world) as stage:
        await stage.create("wide", WIDE)
        await stage.produce("wide", range(WIDE))
        await stage.delete("wide")
        await asyncio.sleep(MINUTES_S)
    assert not [name for name in world.disk(0).list_names("/data/logs") if "deleted" in name]
    await world.stop_broker(0)


async def compaction(world: SimWorld) -> None:
    await world.start_broker(0)
    async with staged(world) as stage:
        await stage.create(
            "table", cleanup_policy="compact", segment_bytes=20_000, min_cleanable_dirty_ratio=0.01
        )
        for _ in range(100):
            await stage.produce("table", size=900, key=b"key")
        size_bytes = replica(world, 0, TopicPartition("table", 0)).log.size_bytes
        await asyncio.sleep(MINUTES_S)
        assert replica(world, 0, TopicPartition("table", 0)).log.size_bytes < size_bytes / 2
    await world.stop_broker(0)


async def first_append_after_a_torn_tail(world: SimWorld) -> None:
    await world.start_broker(0)
    async with staged(world) as stage:
        await stage.create("torn", index_interval_bytes=0)
        for _ in range(INDEXED_BATCHES):
            await stage.produce("torn", size=9_000, acks=1)
    world.crash(0, power_loss=False)
    disk = world.disk(0)
    path = "/data/logs/torn-0/00000000000000000000.log"
    disk.open(path).pwrite([b"\xff" * 100], disk.size(path))
    await world.restart(0)
    async with staged(world) as stage:
        await stage.settle()  # a leader that comes back is silent at first
        await stage.produce("torn")
    await world.stop_broker(0)


async def start_after_an_unclean_end(world: SimWorld) -> None:
    await world.start_broker(0)
    async with staged(world) as stage:
        await stage.create("wide", WIDE)
        await stage.produce("wide", range(WIDE))
    world.crash(0)
    await world.restart(0)
    async with staged(world) as stage:
        await stage.settle()  # a leader that comes back is silent at first
        await stage.produce("wide", range(WIDE))
    await world.stop_broker(0)


async def loading_of_a_group_coordinator(world: SimWorld) -> None:
    await world.start_broker(0)
    async with staged(world) as stage:
        await stage.create("wide", WIDE)
        await find_coordinator(stage)
        for number in range(50):
            await commit(stage, f"g{number}", WIDE)
    await world.stop_broker(0)
    world.disk(0).is_resident = False
    await world.start_broker(0)
    async with staged(world) as stage:
        await stage.settle()
        await commit(stage, "g0", WIDE)
    await world.stop_broker(0)


async def truncation(world: SimWorld) -> None:
    """A leader that wrote alone comes back as a follower and cuts its tail."""
    for broker_id in IDS:
        await world.start_broker(broker_id)
    async with staged(world) as stage:
        await stage.create("orders", replication=3)
        await eventually(lambda: replicas_agree(world, IDS, ORDERS))
    old = leader_of(world, IDS, ORDERS)
    others = [broker_id for broker_id in IDS if broker_id != old]
    async with staged(world, old) as stage:
        await stage.produce("orders", size=900_000)
        world.net.isolate(host_name(old), map(host_name, others))
        for _ in range(LARGE_BATCHES):
            await stage.produce("orders", size=900_000, acks=1)
        await stage.fetch("orders")
    world.crash(old, power_loss=False)
    await eventually(lambda: any(replica(world, i, ORDERS).is_leader for i in others))
    world.net.heal_all()
    async with staged(world, leader_of(world, others, ORDERS)) as stage:
        await stage.produce("orders", size=10)
    await world.restart(old)
    await eventually(lambda: replicas_agree(world, IDS, ORDERS))
    assert replica(world, old, ORDERS).log.log_end_offset == 2
    for broker_id in IDS:
        await world.stop_broker(broker_id)


BACKGROUND = {
    "retention of many segments": retention_of_many_segments,
    "removal of many logs": removal_of_many_logs,
    "compaction": compaction,
    "first append after a torn tail": first_append_after_a_torn_tail,
    "start after an unclean end": start_after_an_unclean_end,
    "loading of a group coordinator": loading_of_a_group_coordinator,
    "truncation": truncation,
}
