"""A leader that stops cleanly hands over at once: its successors need not be silent."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.replicas import eventually, leader_of, replica, replicas_agree
from tests.sim.three_brokers import IDS, ORDERS, Bench, run


@pytest.mark.parametrize("seed", range(12))
def test_the_successor_of_a_leader_that_stops_acts_at_once(seed):
    async def scenario(bench: Bench) -> None:
        world, leader = bench.world, bench.leader
        await bench.send(5)
        await eventually(lambda: replicas_agree(world, IDS, ORDERS))
        others = [one for one in IDS if one != leader]
        await asyncio.sleep(2.0)  # a process that has just started is silent anyway
        await world.stop_broker(leader)
        await eventually(lambda: any(replica(world, one, ORDERS).is_leader for one in others))
        assert not replica(world, leader_of(world, others, ORDERS), ORDERS).is_silent

    run(scenario, seed)
