"""A leader that lost the store but not its clients: it must not answer as an owner (H3)."""

from __future__ import annotations

import asyncio

from tests.sim.replicas import eventually, replica
from tests.sim.test_three_brokers import elected_without
from tests.sim.three_brokers import IDS, ORDERS, SEEDS, Bench, run
from tidemill.client.admin.topic_admin import Admin
from tidemill.core.errors import ErrorCode
from tidemill.testing.sim.world import SESSION_TIMEOUT_S
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

UNVOUCHED = {"unclean.leader.election.enable": "true"}
"""Nobody vouches for leaders of this topic."""


async def _fetch_from(bench: Bench, broker_id: int, *, max_wait_ms: int = 0) -> tuple[int, int]:
    """A consumer's fetch that asks this broker; the code and the size of what it gave."""
    copy = replica(bench.world, broker_id, ORDERS)
    wanted = FetchPartition(fetch_offset=copy.high_watermark, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic_id=copy.topic_id, partitions=[wanted])],
    )
    connection = await bench.cluster.connection(broker_id)
    response = await connection.request(request, FetchResponse, timeout_s=30.0)
    data = response.responses[0].partitions[0]
    return data.error_code, len(data.records or b"")


async def _append_to(bench: Bench, broker_id: int) -> int:
    records = memoryview(build_batch([Record(b"stale", timestamp=1)]))
    data = PartitionProduceData(index=0, records=records)
    copy = replica(bench.world, broker_id, ORDERS)
    topic = TopicProduceData(topic_id=copy.topic_id, partition_data=[data])
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
    connection = await bench.cluster.connection(broker_id)
    response = await connection.request(request, ProduceResponse, timeout_s=30.0)
    return int(response.responses[0].partition_responses[0].error_code)


@SEEDS
def test_I8_I15_a_leader_without_the_store_neither_reads_nor_appends_for_clients(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        await bench.cluster.refresh([])
        zombie = bench.leader
        parked = asyncio.ensure_future(_fetch_from(bench, zombie, max_wait_ms=2_000))
        await asyncio.sleep(0.1)
        session = bench.world.session(zombie)
        session.suspend()
        refused = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await _append_to(bench, zombie) == refused
        assert await _fetch_from(bench, zombie) == (refused, 0)
        assert await parked == (refused, 0)
        session.expire()
        await elected_without(bench, zombie)
        assert replica(bench.world, zombie, ORDERS).log.log_end_offset == 5
        session.resume()
        await bench.send(5)
        await bench.check()

    run(scenario, seed, configs=UNVOUCHED)


@SEEDS
def test_I8_a_leader_without_the_store_goes_on_while_its_followers_vouch_for_it(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        await bench.cluster.refresh([])
        leader = bench.leader
        session = bench.world.session(leader)
        session.suspend()
        await asyncio.sleep(0.5 * SESSION_TIMEOUT_S)
        await bench.send(5)
        assert bench.leader == leader
        assert not bench.world.broker(leader).cluster.may_act
        others = [one for one in IDS if one != leader]
        await elected_without(bench, leader)
        (new,) = [one for one in others if replica(bench.world, one, ORDERS).is_leader]
        # Its successor is silent, unless the vouches have run out meanwhile: never do both act.
        for _ in range(100):
            both = [replica(bench.world, one, ORDERS).may_act for one in (leader, new)]
            assert both != [True, True]
            await asyncio.sleep(0.02)
        assert both == [False, True]
        assert await _append_to(bench, leader) == int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        session.resume()
        await bench.send(5)
        await bench.check()

    run(scenario, seed)


@SEEDS
def test_F97_a_store_that_stands_still_stops_nobody_and_its_storm_loses_nothing(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        for broker_id in IDS:
            bench.world.session(broker_id).suspend()
        began = bench.world.loop.time()
        while bench.world.loop.time() < began + 5 * SESSION_TIMEOUT_S:
            await bench.send(1)
            await asyncio.sleep(0.1)
        for broker_id in IDS:
            bench.world.session(broker_id).resume()
        await bench.send(20)
        await bench.check()

    run(scenario, seed)


@SEEDS
def test_acknowledgements_that_waited_for_the_lease_leave_when_it_is_back(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        leader = bench.leader
        bench.world.disk_delays_s[leader] = 0.5
        value, delivery = await bench.begin()
        await asyncio.sleep(0.2)
        session = bench.world.session(leader)
        session.suspend()
        await asyncio.sleep(2.0)
        led = replica(bench.world, leader, ORDERS)
        assert (led.log.log_end_offset, led.durable_offset) == (6, 5)
        session.resume()
        back = bench.world.loop.time()
        bench.history.sent(ORDERS, await delivery.offset(), value)
        assert bench.world.loop.time() - back < 2.0
        del bench.world.disk_delays_s[leader]
        await bench.check()

    run(scenario, seed, configs=UNVOUCHED)


@SEEDS
def test_H1_an_in_sync_set_in_doubt_counts_as_made_until_it_is_settled(seed):
    """The connection to the store ends while a follower that caught up is proposed."""

    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        leader, away = bench.leader, bench.followers[0]
        bench.cut_off(away)
        await bench.send(5)
        led = replica(bench.world, leader, ORDERS)
        assert away not in led.isr
        bench.world.net.heal_all()
        for _ in range(100_000):
            if led.led is not None and away in led.led.in_sync.feared:
                break
            await asyncio.sleep(0.0002)  # `eventually` looks too seldom: it takes milliseconds
        session = bench.world.session(leader)
        session.suspend()
        await asyncio.sleep(1.0)
        assert led.led is not None
        assert away in led.led.in_sync.maximal
        session.resume()
        await bench.send(5)
        await bench.check()

    run(scenario, seed)


@SEEDS
def test_H5_records_deleted_at_the_leader_stay_deleted_after_its_death(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(10)
        await Admin(bench.cluster).delete_records(ORDERS.topic, {0: 7})
        followers = bench.followers
        await eventually(
            lambda: all(
                replica(bench.world, one, ORDERS).log.log_start_offset == 7 for one in followers
            )
        )
        await asyncio.sleep(2.0)
        for broker_id in followers:
            bench.world.crash(broker_id)
            await bench.world.restart(broker_id)
        await eventually(
            lambda: all(
                replica(bench.world, one, ORDERS).log.log_start_offset == 7 for one in followers
            )
        )

    run(scenario, seed)
