"""S11, I36: whatever happens to one topic of very many partitions, no turn of the loop is long.

A turn may do a few things per partition of the topic: copy a list, compare two tuples. What takes
more is divided. At the largest topic that one request can make, the bound is a tenth of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.loop.counted_disk import CountedDisk
from tests.loop.turn_work import Turn, TurnWork
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.rules.topic_planner import ConfigChange, PartitionsSpec, TopicSpec
from tidemill.testing.sim.world import SimWorld

PARTITIONS = 2_000
CALLS_PER_PARTITION = 40
"""At 10,000 partitions 400,000 calls: about 100 ms."""
SETTLE_S = 6.0
NAME = "wide"

Phase = Callable[[SimWorld], Awaitable[object]]


def controller(world: SimWorld) -> Cluster:
    (found,) = [one.cluster for one in world.up_brokers().values() if one.cluster.is_controller]
    return found


async def create(world: SimWorld) -> None:
    spec = TopicSpec(name=NAME, partitions=PARTITIONS, replication_factor=2)
    await made(controller(world).create_topics([spec]))


async def add(world: SimWorld) -> None:
    spec = PartitionsSpec(name=NAME, count=2 * PARTITIONS)
    await made(controller(world).create_partitions([spec]))


async def configure(world: SimWorld) -> None:
    change = ConfigChange(name=NAME, changes=[("min.insync.replicas", AlterOp.SET, "2")])
    await made(controller(world).alter_topic_configs([change]))


async def elect(world: SimWorld) -> None:
    cluster = controller(world)
    partitions = cluster.image.topics[NAME].partitions
    away = [index for index, one in enumerate(partitions) if one.leader != one.replicas[0]]
    assert len(away) > PARTITIONS / 4
    refused = await cluster.elect_leaders(
        [TopicPartition(NAME, one) for one in away], unclean=False
    )
    assert set(refused) == {None}


async def delete(world: SimWorld) -> None:
    await made(controller(world).delete_topics([NAME]))


async def made(change: Awaitable[list]) -> None:
    assert {result.code for result in await change} == {ErrorCode.NONE}


async def crash(world: SimWorld) -> None:
    world.crash(1, power_loss=False)


PHASES: dict[str, Phase] = {
    "creation": create,
    "a broker stops": lambda world: world.stop_broker(1),
    "it comes back": lambda world: world.start_broker(1),
    "leaders go back": elect,
    "a broker is killed": crash,
    "it comes back unclean": lambda world: world.start_broker(1),
    "another minimum": configure,
    "more partitions": add,
    "deletion": delete,
}


@pytest.fixture(scope="module")
def largest_turns() -> dict[str, Turn]:
    """By phase: the turn of the loop with the most calls."""
    found: dict[str, Turn] = {}
    work = TurnWork()

    async def main(world: SimWorld) -> None:
        for broker_id in (0, 1):
            await world.start_broker(broker_id)
        await asyncio.sleep(SETTLE_S)  # the controller lets the second one in
        for name, phase in PHASES.items():
            work.largest = Turn(0, "", ())
            await phase(world)
            await asyncio.sleep(SETTLE_S)
            found[name] = work.largest

    values = {"auto.leader.rebalance.enable": "false"}
    world = SimWorld(
        1, values=values, watch_disk=lambda disk: CountedDisk(disk, work), watches_loop=False
    )
    with work.watching():
        world.run(main)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_S11_I36_no_turn_does_much_for_every_partition_of_one_topic(largest_turns, phase):
    turn = largest_turns[phase]
    assert turn.calls < CALLS_PER_PARTITION * PARTITIONS, str(turn)
