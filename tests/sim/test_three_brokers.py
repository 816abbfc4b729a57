"""Three brokers on simulated seams: replication, failover and return of a broker."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.clients import drain
from tests.sim.replicas import eventually, leader_of, log_bytes, replica, replicas_agree
from tests.sim.three_brokers import IDS, ORDERS, SEEDS, Bench, run
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)


async def write_alone(bench: Bench, count: int) -> None:
    """Cut the leader off from its followers and send it records with acks=1."""
    bench.cut_off(bench.leader)
    net, bootstrap = bench.world.client_net("hasty"), bench.world.bootstrap
    async with (
        ClusterClient(net, bootstrap) as cluster,
        Producer(cluster, bench.world.clock, acks=1) as hasty,
    ):
        for _ in range(count):
            _, delivery = await bench.begin(hasty)
            await delivery.offset()


async def elected_without(bench: Bench, old: int) -> None:
    """Wait until another broker than `old` leads the partition."""
    others = [broker_id for broker_id in IDS if broker_id != old]
    await eventually(lambda: any(replica(bench.world, i, ORDERS).is_leader for i in others))


@SEEDS
def test_F77_followers_pull_the_leaders_bytes(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(60)
        await bench.check()
        assert replica(bench.world, bench.leader, ORDERS).log.log_end_offset == 60

    run(scenario, seed)


@SEEDS
def test_an_acknowledged_record_is_on_every_in_sync_disk(seed):
    async def scenario(bench: Bench) -> None:
        for _ in range(20):
            _, delivery = await bench.begin()
            offset = await delivery.offset()
            for broker_id in IDS:
                assert replica(bench.world, broker_id, ORDERS).log.flushed_offset > offset

    run(scenario, seed)


@pytest.mark.parametrize(("flush", "waits"), [("group", True), ("os", False)])
def test_acks_all_waits_for_the_slowest_disk_unless_flush_is_os(flush, waits):
    async def scenario(bench: Bench) -> None:
        await bench.send(1)
        bench.world.disk_delays_s[bench.followers[0]] = 4.0
        started = bench.world.loop.time()
        await bench.send(1)
        assert (bench.world.loop.time() - started > 1.0) is waits

    run(scenario, 1, configs={"tidemill.flush": flush})


@SEEDS
def test_F79_consumers_see_only_what_every_in_sync_replica_has(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        bench.cut_off(bench.followers[0])
        _, delivery = await bench.begin()
        await asyncio.sleep(5.0)
        assert replica(bench.world, bench.leader, ORDERS).log.log_end_offset == 6
        assert len(await drain(bench.world, ORDERS)) == 5
        bench.world.net.heal_all()
        assert await delivery.offset() == 5
        assert len(await drain(bench.world, ORDERS)) == 6

    run(scenario, seed)


@SEEDS
def test_F78_a_silent_follower_holds_acks_all_back_until_it_leaves_the_isr(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        leader, silent = bench.leader, bench.followers[0]
        bench.cut_off(silent)
        value, delivery = await bench.begin()
        await asyncio.sleep(5.0)
        led = replica(bench.world, leader, ORDERS)
        assert led.high_watermark == 5
        assert sorted(led.isr) == list(IDS)
        bench.history.sent(ORDERS, await delivery.offset(), value)
        assert silent not in led.isr
        bench.world.net.heal_all()
        await bench.send(5)
        await bench.check()

    run(scenario, seed)


@SEEDS
def test_I14_below_min_isr_nothing_is_acknowledged(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(3)
        leader = bench.leader
        for follower in bench.followers:
            bench.world.crash(follower)
        value, delivery = await bench.begin()
        await asyncio.sleep(60.0)
        assert replica(bench.world, leader, ORDERS).high_watermark == 3
        for broker_id in IDS:
            if broker_id != leader:
                await bench.world.restart(broker_id)
        bench.history.sent(ORDERS, await delivery.offset(), value)
        await bench.check()

    run(scenario, seed, configs={"min.insync.replicas": "2"})


@pytest.mark.parametrize("power_loss", [True, False])
@SEEDS
def test_I1_I12_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(seed, power_loss):
    async def scenario(bench: Bench) -> None:
        await bench.send(20)
        old = bench.leader
        epoch = replica(bench.world, old, ORDERS).leader_epoch
        value, delivery = await bench.begin()
        bench.world.crash(old, power_loss=power_loss)
        bench.history.sent(ORDERS, await delivery.offset(), value)
        others = [broker_id for broker_id in IDS if broker_id != old]
        new = leader_of(bench.world, others, ORDERS)
        assert replica(bench.world, new, ORDERS).leader_epoch > epoch
        await bench.send(20)
        await bench.world.restart(old)
        await bench.check()

    run(scenario, seed)


@SEEDS
def test_I10_a_returning_leader_truncates_what_only_it_had(seed):
    """By epoch: the tail is below the new log end, so its length alone would not show it."""

    async def scenario(bench: Bench) -> None:
        await bench.send(10)
        old = bench.leader
        await write_alone(bench, 5)
        lonely = log_bytes(replica(bench.world, old, ORDERS))
        bench.world.crash(old, power_loss=False)
        await elected_without(bench, old)
        bench.world.net.heal_all()
        await bench.send(10)
        await bench.world.restart(old)
        await bench.check()
        healed = log_bytes(replica(bench.world, old, ORDERS))
        assert healed[: len(lonely)] != lonely

    run(scenario, seed)


def test_I10_a_returning_leader_truncates_even_its_first_records():
    """The new leader does not know the old one's only epoch: only the start is common."""

    async def scenario(bench: Bench) -> None:
        old = bench.leader
        await write_alone(bench, 5)
        bench.world.crash(old, power_loss=False)
        await elected_without(bench, old)
        bench.world.net.heal_all()
        await bench.send(5)
        await bench.world.restart(old)
        await bench.check()

    run(scenario, 1)


def test_I14_a_follower_with_a_tail_of_its_own_acknowledges_nothing():
    async def scenario(bench: Bench) -> None:
        await write_alone(bench, 3)
        led = replica(bench.world, bench.leader, ORDERS)
        image = bench.world.broker(bench.leader).cluster.image
        host, port = image.brokers[bench.leader].peer_endpoint
        stranger = bench.world.client_net("stranger")
        connection = await BrokerConnection.open(stranger, host, port, timeout_s=5.0)
        for follower in bench.followers:
            for epoch, offset in ((99, 3), (led.leader_epoch, 4)):
                wanted = FetchPartition(
                    current_leader_epoch=led.leader_epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=epoch,
                    flushed_offset=offset,
                )
                broker_epoch = bench.world.broker(follower).cluster.broker_epoch
                request = FetchRequest(
                    replica_state=ReplicaState(replica_id=follower, replica_epoch=broker_epoch),
                    topics=[FetchTopic(topic_id=led.topic_id, partitions=[wanted])],
                )
                response = await connection.request(request, FetchResponse, timeout_s=5.0)
                data = response.responses[0].partitions[0]
                is_refused = data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
                assert is_refused or data.diverging_epoch is not None
        assert led.high_watermark == 0
        connection.close()

    run(scenario, 1)


def test_S31_a_client_cannot_fetch_as_a_replica():
    async def scenario(bench: Bench) -> None:
        await bench.cluster.refresh([])
        connection = await bench.cluster.connection(bench.leader)
        follower = bench.followers[0]
        epoch = bench.world.broker(follower).cluster.broker_epoch
        state = ReplicaState(replica_id=follower, replica_epoch=epoch)
        request = FetchRequest(replica_state=state)
        response = await connection.request(request, FetchResponse, timeout_s=5.0)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    run(scenario, 1)


@SEEDS
def test_I12_only_an_in_sync_replica_is_elected(seed):
    """The only live replica lacks records: the partition waits for one that has all of them."""

    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        leader, (behind, in_sync) = bench.leader, bench.followers
        bench.cut_off(behind)
        await bench.send(5)
        assert behind not in replica(bench.world, leader, ORDERS).isr
        for broker_id in (leader, in_sync):
            bench.world.crash(broker_id)
        bench.world.net.heal_all()
        await asyncio.sleep(60.0)
        assert not replica(bench.world, behind, ORDERS).is_leader
        await bench.world.restart(in_sync)
        await bench.world.restart(leader)
        await bench.send(5)
        await bench.check()

    run(scenario, seed)


@SEEDS
def test_I15_a_leader_that_lost_its_session_acknowledges_nothing(seed):
    """It still believes that it leads: it has lost the store, but not its clients."""

    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        zombie = bench.leader
        bench.world.session(zombie).suspend()
        bench.world.session(zombie).expire()
        await elected_without(bench, zombie)
        believer = replica(bench.world, zombie, ORDERS)
        assert believer.is_leader
        value, delivery = await bench.begin()
        await asyncio.sleep(5.0)
        assert believer.high_watermark == 5
        bench.world.session(zombie).resume()
        bench.history.sent(ORDERS, await delivery.offset(), value)
        await bench.check()

    run(scenario, seed)


def test_a_broker_whose_session_is_interrupted_while_it_rejoins_still_registers():
    async def scenario(bench: Bench) -> None:
        shaken = bench.world.session(bench.followers[0])
        shaken.suspend()
        shaken.expire()
        shaken.resume()
        rejoining = asyncio.Event()
        shaken.on_state(lambda _state: rejoining.set())
        await rejoining.wait()
        shaken.suspend()
        await asyncio.sleep(3.0)
        shaken.resume()
        await eventually(lambda: replicas_agree(bench.world, IDS, ORDERS))

    run(scenario, 1)


@SEEDS
def test_I1_a_power_loss_of_all_three_loses_nothing_acknowledged(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(20)
        value, delivery = await bench.begin()
        for broker_id in IDS:
            bench.world.crash(broker_id, power_loss=True)
        for broker_id in reversed(IDS):
            await bench.world.restart(broker_id)
        bench.history.sent(ORDERS, await delivery.offset(), value)
        await bench.send(5)
        await bench.check()

    run(scenario, seed)


@SEEDS
def test_deleting_a_topic_does_not_stop_the_replication_of_others(seed):
    async def scenario(bench: Bench) -> None:
        admin = Admin(bench.cluster)
        for number in range(5):
            name = f"short-{number}"
            await admin.create_topic(name, partitions=3, replication=3)
            sends = [await bench.producer.send(name, b"x", partition=i % 3) for i in range(9)]
            for one in sends:
                await one.offset()
            await asyncio.gather(admin.delete_topics([name]), bench.send(3))
        started = bench.world.loop.time()
        await bench.send(20)
        assert bench.world.loop.time() - started < 5.0
        await bench.check()

    run(scenario, seed)


def test_a_clean_stop_waits_for_the_flush_that_runs():
    async def scenario(bench: Bench) -> None:
        follower = bench.followers[0]
        bench.world.disk_delays_s[follower] = 0.5
        value, delivery = await bench.begin()
        await asyncio.sleep(0.2)
        await bench.world.stop_broker(follower)
        bench.history.sent(ORDERS, await delivery.offset(), value)
        del bench.world.disk_delays_s[follower]
        await bench.world.start_broker(follower)
        await bench.check()

    run(scenario, 1)


def test_I14_an_unclean_end_is_told_again_until_the_controller_has_counted_it():
    async def scenario(bench: Bench) -> None:
        world = bench.world
        (controller,) = [one for one in IDS if world.broker(one).cluster.is_controller]
        victim = next(one for one in IDS if one != controller)
        world.crash(victim, power_loss=True)
        # When: it comes back, and is stopped in order before the controller has let it in.
        world.pause(controller)
        await world.start_broker(victim)
        assert world.broker(victim).cluster.lease.fenced
        await world.stop_broker(victim)
        # Then: its next life says too that records may be missing.
        await world.start_broker(victim)
        assert world.broker(victim).cluster.image.brokers[victim].unclean
        world.unpause(controller)
        await eventually(lambda: world.broker(victim).cluster.may_act)
        await world.stop_broker(victim)
        await world.start_broker(victim)
        assert not world.broker(victim).cluster.image.brokers[victim].unclean

    run(scenario, 1)
