"""Damage in a log with gaps that another replica's compaction made: only damage is damage (I17)."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.replicas import eventually, replica, replicas_agree
from tests.sim.three_brokers import IDS, Bench, run
from tidemill.client.admin.replica_admin import reassign
from tidemill.client.admin.topic_admin import Admin
from tidemill.core.ids import TopicPartition
from tidemill.storage.log.partition_log import FilePartitionLog

SINGLE = TopicPartition("single", 0)
RECORDS = 300
KEYS = 7
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}


async def _compacted(bench: Bench) -> int:
    """Fill a log with a single replica and wait until it is cleaned; where it is."""
    await Admin(bench.cluster).create_topic(
        SINGLE.topic, partitions=1, replication=1, configs=COMPACTED
    )
    for number in range(RECORDS):
        key = b"%d" % (number % KEYS if number % (KEYS + 2) else number)
        delivery = await bench.producer.send(SINGLE.topic, bytes(60), key=key, partition=0)
        await delivery.offset()
    (holder,) = [i for i in IDS if bench.world.broker(i).replicas.find(*SINGLE) is not None]
    log = _log(bench, holder)
    await eventually(lambda: log.clean_point.offset > 0)
    return holder


def _log(bench: Bench, broker_id: int) -> FilePartitionLog:
    log = replica(bench.world, broker_id, SINGLE).log
    assert isinstance(log, FilePartitionLog)
    return log


@pytest.mark.parametrize("copies", [1, 2])
def test_I17_gaps_of_a_log_that_is_no_longer_compacted_are_not_given_up(copies):
    async def scenario(bench: Bench) -> None:
        world = bench.world
        holder = await _compacted(bench)
        await Admin(bench.cluster).alter_configs(SINGLE.topic, set_to={"cleanup.policy": "delete"})
        others = [i for i in IDS if i != holder][:copies]
        await reassign(bench.cluster, {SINGLE: others})
        await eventually(lambda: replicas_agree(world, others, SINGLE))
        leader = next(i for i in others if replica(world, i, SINGLE).is_leader)
        log = _log(bench, leader)
        assert not log.may_have_gaps  # it does not know of them
        segment = log.segments.oldest
        world.disk(leader).flip_bit(segment.path, segment.size_bytes // 2)
        world.broker(leader).directory.doubt([segment.path])
        await eventually(lambda: bool(log.damage.to_mend))
        await eventually(lambda: not log.damage.is_open)
        await asyncio.sleep(60.0)
        assert len(log.damage.given_up) == (1 if copies == 1 else 0)

    run(scenario, 0)
