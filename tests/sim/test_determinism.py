"""One broker on simulated seams: a seed is a run, and no run loses what was promised."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from tests.sim.clients import Worker, drain
from tests.sim.history import History
from tidemill.client.admin import Admin
from tidemill.client.cluster import Cluster
from tidemill.core.ids import TopicPartition
from tidemill.testing.sim_world import SimWorld

TOPIC = "orders"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(2)]
WORKERS = 4
OPERATIONS = 500
VALUES = {"log.segment.bytes": 4_096}
"""Segments of a few batches: a crash finds rolled files, snapshots and indexes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    trace: str
    events: int
    acked: int
    crashes: int


async def _crash_now_and_then(world: SimWorld, history: History, crashes: int) -> None:
    """Power losses and kills, at any step of anything, with and without a pause afterwards."""
    for _ in range(crashes):
        await asyncio.sleep(0.1 + world.rng.below(500) / 1000)
        world.crash(0, power_loss=world.rng.below(3) > 0)
        history.life += 1
        await asyncio.sleep(world.rng.below(3000) / 1000)
        await world.restart(0)


def _run(seed: int, *, crashes: int = 1, operations: int = OPERATIONS) -> Outcome:
    history = History()

    async def main(world: SimWorld) -> None:
        await world.start_broker(0)
        async with Cluster(world.client_net("admin"), world.bootstrap) as cluster:
            await Admin(cluster).create_topic(TOPIC, partitions=len(PARTITIONS))
        workers = [Worker(world, number, history, PARTITIONS) for number in range(WORKERS)]
        await asyncio.gather(
            *(worker.run(operations // WORKERS) for worker in workers),
            _crash_now_and_then(world, history, crashes),
        )
        for partition in PARTITIONS:
            history.check_final(partition, await drain(world, partition))
        await world.stop_broker(0)

    world = SimWorld(seed, values=VALUES)
    world.run(main)
    acked = sum(map(len, history.acked.values()))
    return Outcome(world.trace.hexdigest(), world.trace.events, acked, history.life)


def test_D9_the_same_seed_repeats_a_run_with_a_crash_to_the_last_byte() -> None:
    first, second = _run(11), _run(11)
    assert first == second
    assert first.crashes == 1
    assert first.acked > OPERATIONS // 2


def test_D9_another_seed_is_another_run() -> None:
    assert len({_run(seed, operations=80).trace for seed in range(3)}) == 3


@pytest.mark.parametrize("seed", range(8))
def test_I1_I4_I5_crashes_take_nothing_acknowledged(seed: int) -> None:
    assert _run(seed, operations=200, crashes=2).acked > 100
