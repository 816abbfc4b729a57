"""Where logs start on three brokers: what is deleted stays deleted, and leaders know it."""

from __future__ import annotations

import asyncio

from tests.sim.replicas import eventually, leader_of, replica, replicas_agree
from tests.sim.three_brokers import IDS, ORDERS, SEEDS, Bench, run
from tidemill.client.admin.topic_admin import Admin
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

RECORDS = 20
DELETED = 10
PAIR = TopicPartition("pair", 0)


async def _delete(bench: Bench, log: TopicPartition = ORDERS, *, before: int = DELETED) -> None:
    await Admin(bench.cluster).delete_records(log.topic, {log.partition: before})


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


def test_I9_who_has_missed_a_deletion_gets_in_sync_when_it_has_deleted_the_same():
    async def scenario(bench: Bench) -> None:
        world = bench.world
        await bench.send(RECORDS)
        await eventually(lambda: replicas_agree(world, IDS, ORDERS))
        leader, other = bench.leader, bench.followers[1]
        led = replica(world, leader, ORDERS)
        await world.stop_broker(other)
        await eventually(lambda: other not in led.isr)
        await _delete(bench)
        await world.start_broker(other)
        while led.led is None or other not in led.led.in_sync.maximal:  # noqa: ASYNC110 - in time
            await asyncio.sleep(0.0002)
        assert replica(world, other, ORDERS).log.log_start_offset == DELETED

    run(scenario, 0)


def test_I9_a_follower_confirms_a_deletion_that_it_would_know_after_a_crash():
    async def scenario(bench: Bench) -> None:
        world = bench.world
        configs = {"min.insync.replicas": "1"}
        await Admin(bench.cluster).create_topic(
            "pair", partitions=1, replication=2, configs=configs
        )

        def holders() -> list[int]:
            return [i for i in IDS if world.broker(i).replicas.find(*PAIR) is not None]

        await eventually(lambda: len(holders()) == 2 and replicas_agree(world, holders(), PAIR))
        for _ in range(RECORDS):
            await (await bench.producer.send("pair", b"x", partition=0)).offset()
        first = leader_of(world, holders(), PAIR)
        (second,) = [i for i in holders() if i != first]
        await _delete(bench, PAIR, before=5)
        await _delete(bench, PAIR)  # within a second of the first
        world.crash(first, power_loss=False)
        await eventually(lambda: replica(world, second, PAIR).is_leader)
        world.crash(second, power_loss=False)
        await world.start_broker(second)
        await eventually(lambda: replica(world, second, PAIR).is_leader)
        assert replica(world, second, PAIR).log.log_start_offset == DELETED

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
