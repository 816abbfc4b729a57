"""What a broker does with many held records: folds, releases, books in files, replays."""

from __future__ import annotations

import asyncio

from tests.loop.stage import Stage, staged
from tests.sim.replicas import eventually, leader_of, replica, replicas_agree
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import HOLD_TABLE_MAX
from tidemill.replication.holding import hold_snapshots
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

LATER = TopicPartition("later", 0)
IDS = (0, 1, 2)
BATCH_RECORDS = 9_000
"""Nearly as many as a batch with held records may have."""
BATCHES = 2
"""More than a table of a book."""
SMALL_BATCH_RECORDS = 600
SMALL_BATCHES = 28
"""As many: a release opens each batch that it takes something from."""
SOON_MS = 40_000
FAR_MS = 3_600_000
SNAPSHOT_LOG_BYTES = 100_000


async def _hold(stage: Stage, delay_ms: int, count: int = BATCH_RECORDS) -> None:
    """One batch of held records, due one after the other."""
    now_ms = stage.world.clock.wall_ms()
    records = [
        Record(b"v", headers=[("tidemill.delay-ms", b"%d" % (delay_ms + at))], timestamp=now_ms)
        for at in range(count)
    ]
    data = PartitionProduceData(index=0, records=bytes(build_batch(records)))
    topics = [TopicProduceData(name=LATER.topic, partition_data=[data])]
    await stage.ask(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics), 9)


def _pending(world: SimWorld, broker_id: int) -> int:
    holds = replica(world, broker_id, LATER).holds
    return holds.book.pending if holds is not None and holds.is_whole else -1


async def releases_of_a_large_book(world: SimWorld) -> None:
    """Folds, runs that are written, and releases out of them."""
    await world.start_broker(0)
    async with staged(world) as stage:
        await stage.create(LATER.topic)
        for _ in range(SMALL_BATCHES):
            await _hold(stage, SOON_MS, SMALL_BATCH_RECORDS)
        assert _pending(world, 0) == SMALL_BATCHES * SMALL_BATCH_RECORDS > HOLD_TABLE_MAX
        await asyncio.sleep(SOON_MS / 1000)
        await eventually(lambda: _pending(world, 0) == 0)
    await world.stop_broker(0)


async def a_large_book_is_restored(world: SimWorld) -> None:
    """From a snapshot and its runs, with a cold page cache."""
    usual = hold_snapshots.HOLD_SNAPSHOT_LOG_BYTES
    hold_snapshots.HOLD_SNAPSHOT_LOG_BYTES = SNAPSHOT_LOG_BYTES
    try:
        await world.start_broker(0)
        async with staged(world) as stage:
            await stage.create(LATER.topic)
            for _ in range(BATCHES):
                await _hold(stage, FAR_MS)
            await stage.settle()
        assert [name for name in _names(world) if name.endswith(".holds")]
        await world.stop_broker(0)
        world.disk(0).is_resident = False
        await world.start_broker(0)
        await eventually(lambda: _pending(world, 0) == BATCHES * BATCH_RECORDS)
        await world.stop_broker(0)
    finally:
        hold_snapshots.HOLD_SNAPSHOT_LOG_BYTES = usual


async def a_large_book_is_replayed(world: SimWorld) -> None:
    """After a power loss, without a snapshot."""
    await world.start_broker(0)
    async with staged(world) as stage:
        await stage.create(LATER.topic)
        for _ in range(BATCHES):
            await _hold(stage, FAR_MS)
    world.crash(0)
    await world.restart(0)
    await eventually(lambda: _pending(world, 0) == BATCHES * BATCH_RECORDS)
    await world.stop_broker(0)


async def a_follower_catches_up(world: SimWorld) -> None:
    """It is sent large batches at once, which its replay folds."""
    for broker_id in IDS:
        await world.start_broker(broker_id)
    async with staged(world) as stage:
        await stage.create(LATER.topic, replication=3)
        await eventually(lambda: replicas_agree(world, IDS, LATER))
    leader = leader_of(world, IDS, LATER)
    late = next(broker_id for broker_id in IDS if broker_id != leader)
    world.crash(late, power_loss=False)
    async with staged(world, leader) as stage:
        for _ in range(BATCHES):
            await _hold(stage, FAR_MS)
    await world.restart(late)
    await eventually(lambda: replicas_agree(world, IDS, LATER))
    await eventually(lambda: _pending(world, late) == BATCHES * BATCH_RECORDS)
    for broker_id in IDS:
        await world.stop_broker(broker_id)


def _names(world: SimWorld) -> list[str]:
    return world.disk(0).list_names(f"/data/logs/{LATER.topic}-{LATER.partition}")


HOLDING = {
    "releases of a large book": releases_of_a_large_book,
    "a large book is restored": a_large_book_is_restored,
    "a large book is replayed": a_large_book_is_replayed,
    "a follower catches up with held records": a_follower_catches_up,
}
