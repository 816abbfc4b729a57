"""One run of a cluster under load and faults, checked at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.sim.clients import Worker, drain, retry_until_ready
from tests.sim.faults import KNOWN_HOLES_KINDS, STALE_READS, Faults
from tests.sim.history import History
from tests.sim.odd_brokers import OTHER_VERSION, founding_software
from tests.sim.probe import Probe
from tests.sim.replicas import eventually, log_bytes, replica, replicas_agree
from tests.sim.stale_client import StaleClient
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.connection import Link
from tidemill.testing.sim.world import DISK_DELAY_S_MAX, SimWorld

__all__ = ["Campaign", "Pace", "check_at_rest", "create_topic", "run_campaign", "simulate"]

TOPIC = "orders"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(2)]
VALUES = {"log.segment.bytes": 4_096}
"""Segments of a few batches, so that a crash meets rolled files, snapshots and indexes."""
TIME_LIMIT_S = 600.0
"""No run that makes progress takes so long; a cluster that is stuck is found soon."""
DISK_FACTORS = (1, 1, 10, 100)
NET_FACTORS = (1, 1, 5, 25)
"""How much longer than usual things take in a seed: half of them keep the usual pace of each."""
_PACE = 0x7ACE


class Pace(NamedTuple):
    """How fast disks and network are during a whole run: which races are likely."""

    disk: int = 1
    net: int = 1

    @classmethod
    def drawn(cls, seed: int) -> Pace:
        """From a generator of its own, so that the rest of a run does not depend on it."""
        rng = SeededRng((seed << 16) + _PACE)
        disk, net = rng.below(len(DISK_FACTORS)), rng.below(len(NET_FACTORS))
        return cls(DISK_FACTORS[disk], NET_FACTORS[net])

    @classmethod
    def of_run(cls, seed: int, kinds: Sequence[str]) -> Pace:
        """A run of named kinds has the usual pace."""
        return cls() if kinds else cls.drawn(seed)

    @property
    def link(self) -> Link:
        usual = Link()
        return Link(delay_s_min=usual.delay_s_min, delay_s_max=self.net * usual.delay_s_max)


@dataclass(slots=True)
class Campaign:
    """The outcome of one run."""

    seed: int
    trace: str = ""
    events: int = 0
    acked: int = 0
    simulated_s: float = 0.0
    elections: int = 0
    near_bytes: int = 0
    """Read from followers, since each broker was last started."""
    faults: list[str] = field(default_factory=list)


async def create_topic(world: SimWorld, replication: int) -> None:
    async with ClusterClient(world.client_net("admin"), world.bootstrap) as cluster:
        await retry_until_ready(
            lambda: Admin(cluster).create_topic(
                TOPIC,
                partitions=len(PARTITIONS),
                replication=replication,
                configs={"min.insync.replicas": str(min(2, replication))},
            )
        )


async def check_at_rest(world: SimWorld, history: History, ids: range) -> None:
    """Check I1, I4, I5 and I8 as clients see them, I10 and I16 in the files."""
    for partition in PARTITIONS:
        await eventually(lambda partition=partition: replicas_agree(world, ids, partition))
        records = await retry_until_ready(lambda partition=partition: drain(world, partition))
        history.check_final(partition, records)
        copies = [replica(world, i, partition) for i in ids]
        start = max(copy.log.log_start_offset for copy in copies)
        assert len({log_bytes(copy, start) for copy in copies}) == 1, "I10"


def simulate(
    campaign: Campaign,
    main: Callable[[SimWorld, History, Probe], Coroutine[Any, Any, None]],
    *,
    partitions: Sequence[TopicPartition],
    values: Mapping[str, object],
    pace: Pace,
    time_limit_s: float = TIME_LIMIT_S,
    watches_loop: bool = True,
) -> None:
    """Run `main` in a world of its own, watched by a probe; the campaign gets its figures."""
    world = SimWorld(
        campaign.seed,
        values=values,
        time_limit_s=time_limit_s,
        link=pace.link,
        disk_delay_s_max=pace.disk * DISK_DELAY_S_MAX,
        watches_loop=watches_loop,
    )
    probe = Probe(world, partitions)
    history = History(probe.told)
    probe.all_lost = history.begin_life
    started = world.loop.time()
    try:
        world.run(lambda world: main(world, history, probe))
    finally:
        probe.check()  # what was broken first says more than what came of it
    campaign.trace, campaign.events = world.trace.hexdigest(), world.trace.events
    campaign.simulated_s = world.loop.time() - started
    campaign.elections = probe.elections


def run_campaign(
    seed: int,
    *,
    brokers: int,
    faults: int,
    operations: int,
    workers: int = 3,
    kinds: Sequence[str] = (),
    pace: Pace | None = None,
    reads_near: bool = False,
) -> Campaign:
    """Run clients during faults; then repair everything and check that nothing is missing.

    `reads_near`: clients also read from whichever broker they are next to.
    Without `kinds` the seed draws some, and the pace; a run of named kinds has the usual pace.
    Raises what was found: AssertionError, SimulationFailed, or an error of a client.
    """
    campaign, ids = Campaign(seed), range(brokers)
    reads_stale = brokers > 1 and STALE_READS in kinds
    if not kinds:
        reads_stale = brokers > 1 and STALE_READS not in KNOWN_HOLES_KINDS

    async def main(world: SimWorld, history: History, probe: Probe) -> None:
        software = founding_software(seed, has_versions=OTHER_VERSION in kinds)
        for broker_id in ids:
            await world.start_broker(broker_id, software=software)
        await create_topic(world, brokers)
        trouble = Faults(world, history, probe, ids, [k for k in kinds if k != STALE_READS])
        campaign.faults = trouble.done
        clients = [Worker(world, number, history, PARTITIONS) for number in range(workers)]
        stale = [StaleClient(world, i, history, PARTITIONS) for i in ids] if reads_stale else []
        if reads_near:
            stale += [StaleClient(world, i, history, PARTITIONS, rack="near") for i in ids]
        working = asyncio.Event()

        async def work() -> None:
            runs = [client.run(operations // workers) for client in clients]
            await asyncio.gather(*runs, trouble.run(faults))
            working.set()

        await asyncio.gather(work(), *(one.run(working.is_set) for one in stale))
        await check_at_rest(world, history, ids)
        campaign.acked = sum(map(len, history.acked.values()))
        lives = (world.broker(broker_id) for broker_id in ids)
        campaign.near_bytes = sum(one.telemetry.follower_read_bytes for one in lives)
        for broker_id in ids:
            await world.stop_broker(broker_id)

    simulate(
        campaign, main, partitions=PARTITIONS, values=VALUES, pace=pace or Pace.of_run(seed, kinds)
    )
    return campaign
