"""Brokers that reach the store and not the controller: partitions go on all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.sim.replicas import eventually, replica
from tests.sim.three_brokers import IDS, ORDERS, SEEDS, Bench, run
from tidemill.client.admin.cluster_admin import elect_leaders, take_cluster_snapshot
from tidemill.client.admin.replica_admin import reassign
from tidemill.client.admin.topic_admin import Admin
from tidemill.core.errors import StoreUnavailable
from tidemill.core.ids import TopicPartition
from tidemill.metadata.store.coord import Op
from tidemill.testing.sim.coord import SimCoord
from tidemill.testing.sim.world import host_name

MINIMUM = {"min.insync.replicas": "2"}
UNCLEAN = {"unclean.leader.election.enable": "true"}
ALONE = TopicPartition("alone", 0)
SOON_S = 60.0
"""Within one lag limit a controller is doubted; a leader steps aside two after that."""


def controller_of(bench: Bench, among=IDS) -> int:
    (found,) = (one for one in among if bench.world.up_brokers()[one].cluster.is_controller)
    return found


async def send_soon(bench: Bench, count: int) -> None:
    try:
        async with asyncio.timeout(SOON_S):
            await bench.send(count)
    except TimeoutError:
        raise AssertionError("the partition stands still") from None


def come_late(session: SimCoord, late_s: float) -> None:
    """The next multi is not answered, and done after the client has gone on."""

    async def multi(ops: Sequence[Op]) -> None:
        del session.multi
        session._on_server(late_s, session._come_late, ops, session._session_number)
        raise StoreUnavailable("no answer")

    session.multi = multi


async def heal_and_check(bench: Bench) -> None:
    bench.world.net.heal_all()
    await send_soon(bench, 3)
    await bench.check()


async def let_lead(bench: Bench, broker_id: int) -> None:
    """Make this broker the first replica of the partition, and so its leader."""
    others = [one for one in IDS if one != broker_id]
    await reassign(bench.cluster, {ORDERS: [broker_id, *others]})
    await elect_leaders(bench.cluster, [ORDERS], unclean=False)
    await eventually(lambda: replica(bench.world, broker_id, ORDERS).is_leader)


@SEEDS
@pytest.mark.parametrize("leads", [True, False])
def test_a_controller_that_no_other_broker_hears_gives_up_its_office(seed, leads):
    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        old = controller_of(bench)
        await let_lead(bench, old if leads else (old + 1) % 3)
        bench.cut_off(old)
        await send_soon(bench, 5)
        assert controller_of(bench, [one for one in IDS if one != old]) != old
        await heal_and_check(bench)

    run(scenario, seed, configs=MINIMUM)


@SEEDS
def test_a_leader_that_alone_does_not_hear_the_controller_lets_another_lead(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(5)
        controller = controller_of(bench)
        leader = (controller + 1) % 3
        await let_lead(bench, leader)
        bench.world.net.isolate(host_name(leader), [host_name(controller)])
        await send_soon(bench, 5)
        assert controller_of(bench) == controller
        assert bench.leader != leader
        await heal_and_check(bench)

    run(scenario, seed, configs=MINIMUM)


@SEEDS
def test_administrators_are_told_who_does_not_hear_the_controller(seed):
    async def scenario(bench: Bench) -> None:
        controller = controller_of(bench)
        deaf, other = (one for one in IDS if one != controller)
        await let_lead(bench, other)
        bench.world.net.isolate(host_name(deaf), [host_name(controller)])
        snapshot = await take_cluster_snapshot(bench.cluster)
        assert snapshot.unhearing == frozenset()
        await asyncio.sleep(SOON_S)
        snapshot = await take_cluster_snapshot(bench.cluster)
        assert snapshot.unhearing == {deaf}
        await heal_and_check(bench)

    run(scenario, seed, configs=MINIMUM)


@SEEDS
def test_a_controller_that_was_only_busy_stays_in_office(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(3)
        controller = controller_of(bench)
        cluster = bench.world.up_brokers()[controller].cluster
        bench.world.net.isolate(host_name(bench.followers[0]), [host_name(bench.followers[1])])
        for _ in range(3):
            async with cluster._lock:  # as during a long change
                await asyncio.sleep(16)
            await asyncio.sleep(20)
        assert controller_of(bench) == controller
        assert cluster.image.controller_epoch == 1
        await heal_and_check(bench)

    run(scenario, seed, configs=MINIMUM)


@SEEDS
def test_nobody_steps_aside_from_a_controller_that_is_only_busy(seed):
    """It could not let anybody in again."""

    async def scenario(bench: Bench) -> None:
        await bench.send(3)
        controller = controller_of(bench)
        leader, behind = (one for one in IDS if one != controller)
        await let_lead(bench, leader)
        bench.world.net.isolate(host_name(leader), [host_name(behind)])
        broker = bench.world.up_brokers()[leader]
        epoch = broker.cluster.broker_epoch
        async with bench.world.up_brokers()[controller].cluster._lock:  # as in a long change
            await asyncio.sleep(2 * SOON_S)
            assert broker.cluster.may_act
            assert broker.cluster.broker_epoch == epoch
        await heal_and_check(bench)

    run(scenario, seed, configs={"min.insync.replicas": "3"})


@SEEDS
def test_a_controller_stays_if_the_others_take_back_what_they_said(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(3)
        controller = controller_of(bench)
        for broker_id, broker in bench.world.up_brokers().items():
            if broker_id != controller:
                broker.cluster.report_unheard(1)  # their next question is answered
        await asyncio.sleep(20)
        assert controller_of(bench) == controller
        assert bench.world.up_brokers()[controller].cluster.image.controller_epoch == 1

    run(scenario, seed, configs=MINIMUM)


@SEEDS
def test_who_steps_aside_leaves_an_office_that_it_does_not_know_of(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(3)
        cluster = bench.world.up_brokers()[controller_of(bench)].cluster
        cluster._controller.step_down()  # as after a campaign whose outcome is unknown
        await cluster.step_aside()
        await eventually(
            lambda: any(one.cluster.is_controller for one in bench.world.up_brokers().values())
        )
        await heal_and_check(bench)

    run(scenario, seed, configs=MINIMUM)


@SEEDS
def test_R9_nobody_steps_aside_whose_last_follower_dies_meanwhile(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(3)
        controller = controller_of(bench)
        leader, behind = (one for one in IDS if one != controller)
        await let_lead(bench, leader)
        bench.world.net.isolate(host_name(leader), [host_name(behind)])
        await bench.send(5)  # acknowledged by two
        cluster = bench.world.up_brokers()[leader].cluster
        async with cluster._lock:  # as during a slow read of the store
            aside = asyncio.create_task(bench.world.on_host(leader, cluster.step_aside()))
            await asyncio.sleep(0.01)
            bench.world.crash(controller)
            bench.world.session(controller).expire()
            await asyncio.sleep(2)
        await aside
        assert replica(bench.world, leader, ORDERS).is_leader
        await bench.world.restart(controller)
        await heal_and_check(bench)

    run(scenario, seed, configs={**UNCLEAN, "min.insync.replicas": "1"})


@SEEDS
def test_I8_a_withdrawal_that_comes_late_does_not_remove_the_next_registration(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(3)
        controller = controller_of(bench)
        leader = (controller + 1) % 3
        await let_lead(bench, leader)
        come_late(bench.world.session(leader), 0.9)
        await bench.world.up_brokers()[leader].cluster.step_aside()
        await asyncio.sleep(SOON_S)
        assert leader in bench.world.up_brokers()[controller].cluster.image.brokers
        await heal_and_check(bench)

    run(scenario, seed, configs=MINIMUM)


@SEEDS
def test_where_nobody_hears_anybody_partitions_of_one_replica_go_on(seed):
    async def scenario(bench: Bench) -> None:
        await Admin(bench.cluster).create_topic(ALONE.topic, partitions=1, replication=1)
        for broker_id in IDS:
            bench.cut_off(broker_id)
        acknowledged = 0
        async with asyncio.timeout(5 * SOON_S):
            for _ in range(20):
                delivery = await bench.producer.send(ALONE.topic, b"one", partition=0)
                await delivery.offset()
                acknowledged += 1
                await asyncio.sleep(10)
        assert acknowledged == 20
        await heal_and_check(bench)

    run(scenario, seed, configs=MINIMUM)
