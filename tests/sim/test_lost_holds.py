"""Holds of a log of which no replica has a range any more: what is left is delivered (I17, I32)."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.clients import retry_until_ready
from tests.sim.replicas import eventually, replica
from tests.sim.three_brokers import IDS, Bench, run
from tidemill.client.admin.topic_admin import Admin
from tidemill.core.ids import TopicPartition
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.state.log_damage import DamagedRange

SINGLE = TopicPartition("single", 0)
HELD = 60
DELAY_MS = 300_000


async def _hold(bench: Bench, count: int, delay_ms: int = DELAY_MS) -> None:
    for number in range(count):
        headers = [("tidemill.delay-ms", b"%d" % (delay_ms + number))]
        value = b"%d" % number + bytes(100)
        delivery = await retry_until_ready(
            lambda value=value, headers=headers: bench.producer.send(
                SINGLE.topic, value, partition=0, headers=headers
            )
        )
        await delivery.offset()


async def _lose_a_batch(bench: Bench, broker_id: int) -> DamagedRange:
    log = replica(bench.world, broker_id, SINGLE).log
    assert isinstance(log, FilePartitionLog)
    segment = list(log.segments)[1]
    bench.world.disk(broker_id).flip_bit(segment.path, segment.size_bytes // 2)
    bench.world.broker(broker_id).directory.doubt([segment.path])
    await eventually(lambda: bool(log.damage.given_up) and not log.damage.is_open)
    (lost,) = log.damage.given_up
    return lost


@pytest.mark.parametrize("restarts", [False, True])
def test_I17_what_is_held_beside_a_lost_record_is_released(restarts):
    async def scenario(bench: Bench) -> None:
        world = bench.world
        await Admin(bench.cluster).create_topic(
            SINGLE.topic, partitions=1, replication=1, configs={"tidemill.delay.enable": "true"}
        )
        await _hold(bench, HELD)
        (holder,) = [i for i in IDS if world.broker(i).replicas.find(*SINGLE) is not None]
        lost = await _lose_a_batch(bench, holder)
        if restarts:
            await world.stop_broker(holder)
            await world.start_broker(holder)
        await asyncio.sleep(2 * DELAY_MS / 1000)
        partition = replica(world, holder, SINGLE)
        holds = partition.holds
        assert holds is not None
        assert holds.is_whole
        assert holds.book.pending == 0
        released = world.broker(holder).telemetry.holds_released
        assert released == HELD - (lost.end_offset - lost.start_offset)
        await _hold(bench, 1, delay_ms=1)

    run(scenario, 0)
