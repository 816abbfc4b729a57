"""S11, I36: whatever happens to all of very many topics, no turn of the loop is long.

A turn may do a few things per topic: put it into a map, compare it. What takes more is divided. At
20,000 topics the bound is what I36 allows: 200 ms.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.loop.counted_disk import CountedDisk
from tests.loop.turn_work import Turn, TurnWork
from tidemill.core.errors import ErrorCode
from tidemill.metadata.image.overrides import ALL_BROKERS
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.override_writer import OverrideChange
from tidemill.metadata.rules.topic_planner import TopicSpec
from tidemill.testing.sim.world import SimWorld

TOPICS = 2_000
CALLS_PER_TOPIC = 30
"""At 20,000 topics 600,000 calls: about 150 ms."""
SETTLE_S = 6.0
KEY, SEGMENT_BYTES = "log.segment.bytes", 12_345_678


async def create(world: SimWorld) -> None:
    specs = [
        TopicSpec(name=f"t-{index}", partitions=1, overrides={"segment.ms": "1000000"})
        for index in range(TOPICS)
    ]
    made = await world.broker(0).cluster.create_topics(specs)
    assert {result.code for result in made} == {ErrorCode.NONE}


@pytest.mark.slow
def test_S11_I36_another_default_of_all_topics_takes_effect_in_short_turns():
    work = TurnWork()

    async def main(world: SimWorld) -> None:
        await world.start_broker(0)
        await create(world)
        await asyncio.sleep(SETTLE_S)
        cluster = world.broker(0).cluster
        work.largest = Turn(0, "", ())
        change = OverrideChange(owner=ALL_BROKERS, changes=[(KEY, AlterOp.SET, str(SEGMENT_BYTES))])
        (result,) = await cluster.alter_overrides([change])
        assert result.code is ErrorCode.NONE, result.detail
        await asyncio.sleep(SETTLE_S)
        found = {topic.config.segment_bytes for topic in cluster.image.topics.values()}
        assert found == {SEGMENT_BYTES}

    world = SimWorld(1, watch_disk=lambda disk: CountedDisk(disk, work), watches_loop=False)
    with work.watching():
        world.run(main)
    assert work.largest.calls < CALLS_PER_TOPIC * TOPICS, str(work.largest)
