"""Where logs start on three brokers: what is deleted stays deleted, and leaders know it."""

from __future__ import annotations

import asyncio

from tests.sim.replicas import eventually, leader_of, replica, replicas_agree
from tests.sim.three_brokers import IDS, ORDERS, SEEDS, Bench, run
from tidemill.client.admin.topic_admin import Admin
from tidemill.core.errors import ErrorCode
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

RECORDS = 20
DELETED = 10


async def _delete(bench: Bench) -> None:
    await Admin(bench.cluster).delete_records(ORDERS.topic, {ORDERS.partition: DELETED})


@SEEDS
def test_I9_what_was_deleted_stays_deleted_when_the_leader_dies_at_once(seed):
    async def scenario(bench: Bench) -> None:
        world = bench.world
        await bench.send(RECORDS)
        await eventually(lambda: replicas_agree(world, IDS, ORDERS))
        await asyncio.sleep(2.0)  # nothing else is on its way to the followers
        leader = bench.leader
        await _delete(bench)
        world.crash(leader)
        others = [i for i in IDS if i != leader]
        await eventually(lambda: any(replica(world, i, ORDERS).is_leader for i in others))
        now = leader_of(world, others, ORDERS)
        assert replica(world, now, ORDERS).log.log_start_offset == DELETED

    run(scenario, seed)


def test_I9_a_deletion_waits_for_whoever_is_in_sync_and_not_for_one_that_has_left():
    async def scenario(bench: Bench) -> None:
        world = bench.world
        await bench.send(RECORDS)
        await eventually(lambda: replicas_agree(world, IDS, ORDERS))
        leader, gone = replica(world, bench.leader, ORDERS), bench.followers[0]
        world.crash(gone)
        deletion = asyncio.ensure_future(_delete(bench))
        await asyncio.sleep(0.5)
        assert gone in leader.isr
        assert not deletion.done()
        await deletion
        assert gone not in leader.isr
        await world.start_broker(gone)
        await eventually(lambda: replicas_agree(world, IDS, ORDERS))
        assert replica(world, gone, ORDERS).log.log_start_offset == DELETED

    run(scenario, 0)


def test_I9_a_deletion_that_an_in_sync_replica_does_not_confirm_is_not_answered_as_done():
    async def scenario(bench: Bench) -> None:
        world = bench.world
        await bench.send(RECORDS)
        await eventually(lambda: replicas_agree(world, IDS, ORDERS))
        bench.cut_off(bench.followers[0])
        wanted = DeleteRecordsPartition(partition_index=ORDERS.partition, offset=DELETED)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=ORDERS.topic, partitions=[wanted])], timeout_ms=2_000
        )
        answer = await bench.cluster.ask_broker(bench.leader, request, DeleteRecordsResponse)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        world.net.heal_all()

    run(scenario, 0)


def test_a_leader_knows_where_retention_has_moved_the_start_of_a_followers_log():
    async def scenario(bench: Bench) -> None:
        world = bench.world
        await bench.send(10 * RECORDS)
        await eventually(lambda: replicas_agree(world, IDS, ORDERS))
        follower = bench.followers[0]
        copy = replica(world, follower, ORDERS)
        assert isinstance(copy.log, FilePartitionLog)
        led = replica(world, bench.leader, ORDERS).led
        assert led is not None
        assert led.followers[follower].log_start_offset == 0
        for segment in list(copy.log.segments)[:2]:
            segment._closed_max_timestamp = 0  # as if its replica alone had found it old
        await asyncio.sleep(301.0)  # until retention has looked
        assert copy.log.log_start_offset > 0
        assert led.followers[follower].log_start_offset == copy.log.log_start_offset

    run(scenario, 0, configs={"retention.ms": "86400000"})
