"""One run of consumer groups over a cluster under faults, checked all along and at the end.

Two groups of three members each, one of the classic and one of the consumer protocol (KIP-848); one
member of each is static. I26 and I28 are judged with every answer (`tests/support/group_history`),
committed offsets as registers at the end, and I27 when everything is repaired: all partitions have
an owner soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from tests.sim.campaign import Campaign, Pace, simulate
from tests.sim.clients import retry_until_ready
from tests.sim.faults import STALE_READS, Faults
from tests.sim.group_wire import SESSION_S, GroupWire, Unanswered
from tests.sim.group_worker import GroupWorker
from tests.sim.history import History
from tests.sim.probe import Probe
from tests.sim.replicas import eventually, replicas_agree
from tests.support.group_history import GroupHistory
from tidemill.client.admin.group_offsets import GroupOffsets
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.ids import TopicPartition
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.testing.sim.world import SESSION_TIMEOUT_S, SimWorld

__all__ = ["run_groups"]

TOPIC = "orders"
NUMBERS = range(4)
PARTITIONS = [TopicPartition(TOPIC, index) for index in NUMBERS]
OFFSETS = [TopicPartition(OFFSETS_TOPIC, index) for index in range(2)]
VALUES = {
    "group.consumer.heartbeat.interval.ms": 1_000,
    "group.consumer.session.timeout.ms": int(1000 * SESSION_S),
    "group.initial.rebalance.delay.ms": 500,
    "offsets.topic.num.partitions": len(OFFSETS),
    "offsets.topic.segment.bytes": 2_048,
}
"""Small segments, so that a coordinator loads several and a crash meets rolled files."""
CLASSIC, CONSUMER = "classic", "consumer"
MEMBERS = 3
OWNED_WITHIN_S = 60
"""Several rounds, each with a member to wait for."""


class _Group:
    """One group, its members and its judge."""

    def __init__(self, world: SimWorld, history: History, name: str, first_number: int) -> None:
        self._world = world
        self.name = name
        self.judge = GroupHistory(
            name,
            time=world.loop.time,
            patience_s=SESSION_S,
            is_stale=lambda: history.stale_hosts > 0,
            stale_s=SESSION_TIMEOUT_S,
            has_generations=name == CLASSIC,
        )
        self.workers = [
            GroupWorker(world, first_number + at, self.judge, NUMBERS, is_static=at == 0)
            for at in range(MEMBERS)
        ]

    def wire(self, cluster: ClusterClient) -> GroupWire:
        any_broker = next(iter(self._world.known_brokers().values()))
        topic_id = any_broker.cluster.image.topics[TOPIC].topic_id
        return GroupWire(cluster, self.name, TOPIC, topic_id)

    async def check_all_owned(self) -> None:
        """I27: every partition has one owner, among the members that live."""
        for _ in range(OWNED_WITHIN_S):
            await asyncio.sleep(1.0)
            if self._owned() == dict.fromkeys(NUMBERS, 1):
                return
        raise AssertionError(f"I27: {self.name}: owners of the partitions: {self._owned()}")

    def _owned(self) -> dict[int, int]:
        names = [one.member.name for one in self.workers if one.member is not None]
        owned = self.judge.owned(names)
        return {number: len(owned.get(number, ())) for number in NUMBERS}

    async def check_offsets(self) -> None:
        """I28: once more, from whoever coordinates now."""
        net, bootstrap = self._world.client_net(), self._world.bootstrap
        async with ClusterClient(net, bootstrap) as cluster:
            wire = self.wire(cluster)
            for number in NUMBERS:
                await self._read(wire, number)
        self.judge.check_offsets()

    async def _read(self, wire: GroupWire, number: int) -> None:
        for _ in range(OWNED_WITHIN_S):
            asked = self.judge.ask()
            try:
                self.judge.read(number, await wire.committed_offset(number), asked)
            except Unanswered:
                await asyncio.sleep(1.0)
            else:
                return
        raise AssertionError(f"I28: {self.name}: nobody knows the offset of partition {number}")


async def _create(world: SimWorld, replication: int) -> None:
    """The topic that is read, and that of the offsets."""
    async with ClusterClient(world.client_net("admin"), world.bootstrap) as cluster:
        create = partial(Admin(cluster).create_topic, TOPIC, partitions=len(PARTITIONS))
        await retry_until_ready(lambda: create(replication=replication))
        first = GroupOffsets(cluster, "first")
        await retry_until_ready(lambda: first.commit({PARTITIONS[0]: 0}))


def run_groups(
    seed: int,
    *,
    brokers: int = 3,
    faults: int = 8,
    operations: int = 120,
    kinds: Sequence[str] = (),
    pace: Pace | None = None,
) -> Campaign:
    """Run members of groups during faults; then repair everything and check I26-I28.

    Raises what was found: AssertionError, SimulationFailed, or an error of a client.
    """
    campaign, ids = Campaign(seed), range(brokers)

    async def main(world: SimWorld, history: History, probe: Probe) -> None:
        for broker_id in ids:
            await world.start_broker(broker_id)
        await _create(world, brokers)
        groups = [
            _Group(world, history, name, at) for at, name in ((0, CLASSIC), (MEMBERS, CONSUMER))
        ]
        trouble = Faults(world, history, probe, ids, [k for k in kinds if k != STALE_READS])
        campaign.faults = trouble.done
        workers = [worker for group in groups for worker in group.workers]
        over = asyncio.Event()

        async def judge() -> None:
            await asyncio.gather(trouble.run(faults), *(one.calm.wait() for one in workers))
            for partition in OFFSETS:
                await eventually(lambda partition=partition: replicas_agree(world, ids, partition))
            for group in groups:
                await group.check_all_owned()
                await group.check_offsets()
            over.set()

        steps = operations // len(workers)
        runs = [
            worker.run(group.wire, steps, over.is_set)
            for group in groups
            for worker in group.workers
        ]
        await asyncio.gather(judge(), *runs)
        campaign.acked = sum(group.judge.acknowledged for group in groups)
        for broker_id in ids:
            await world.stop_broker(broker_id)

    simulate(
        campaign,
        main,
        partitions=[*PARTITIONS, *OFFSETS],
        values={**VALUES, "min.insync.replicas": min(2, brokers)},
        pace=pace or Pace.of_run(seed, kinds),
    )
    return campaign
