"""One cluster that lives for long: shifts of load and faults, one after the other.

A shift is what a run of `campaign.py` is: faults of a few kinds, clients meanwhile, then everything
is repaired and checked. The next one goes on with the same brokers, logs and epochs. What was
checked is deleted from the logs and forgotten, so that an hour needs no more memory than a minute,
and clients ask less often than in a short run, so that an hour costs what happens in it.
"""

from __future__ import annotations

import asyncio
import sys

from tests.sim.campaign import (
    PARTITIONS,
    VALUES,
    Campaign,
    Pace,
    check_at_rest,
    create_topic,
    simulate,
)
from tests.sim.clients import Worker
from tests.sim.faults import Faults
from tests.sim.history import History
from tests.sim.probe import Probe
from tests.sim.stale_client import StaleClient
from tidemill.testing.sim.world import SimWorld

__all__ = ["live_long"]

WORKERS = 3
FAULTS_PER_SHIFT = 20
SHIFTS_PER_ROT = 4
RECORDS_KEPT = 20
"""In each partition, when the rest is deleted: the next shift begins with a log that has some."""
CALM_S_MAX = 48.0
WORKER_PAUSE_S_MAX = 16.0
STALE_PAUSE_S_MAX = 12.0
REST_S_MAX = 900.0
"""How much longer than asked for a life may take: the shift at its end."""


class _LongLife:
    """The clients and faults of one life."""

    def __init__(
        self, world: SimWorld, history: History, probe: Probe, ids: range, campaign: Campaign
    ) -> None:
        self._world = world
        self._history = history
        self._probe = probe
        self._ids = ids
        self._campaign = campaign
        self._workers = 0
        self._shifts = 0

    async def shift(self) -> None:
        """Trouble, and whoever works meanwhile; then everything is checked."""
        over = asyncio.Event()
        world, history = self._world, self._history
        clients = [self._worker() for _ in range(WORKERS)]
        stale = [
            StaleClient(world, i, history, PARTITIONS, pause_s_max=STALE_PAUSE_S_MAX)
            for i in self._ids
        ]
        self._shifts += 1
        also = ("rot",) if self._shifts % SHIFTS_PER_ROT == 0 else ()
        trouble = Faults(world, history, self._probe, self._ids, also=also, calm_s_max=CALM_S_MAX)

        async def cause_trouble() -> None:
            await trouble.run(FAULTS_PER_SHIFT)
            over.set()

        await asyncio.gather(
            cause_trouble(),
            *(client.run(sys.maxsize, over.is_set) for client in clients),
            *(client.run(over.is_set) for client in stale),
        )
        self._campaign.faults += trouble.done
        await check_at_rest(world, history, self._ids)
        self._probe.check()
        for client in clients:
            await client.delete_topics()
        await self._forget(trouble)

    def _worker(self) -> Worker:
        """With a number that no worker of an earlier shift had: values are unique."""
        self._workers += 1
        return Worker(
            self._world,
            self._workers,
            self._history,
            PARTITIONS,
            pause_s_max=WORKER_PAUSE_S_MAX,
        )

    async def _forget(self, trouble: Faults) -> None:
        for partition in PARTITIONS:
            acked = self._history.acked[partition]
            await trouble.delete_records(partition, max(0, max(acked, default=0) - RECORDS_KEPT))
            self._campaign.acked += len(acked)
        self._history.forget_checked()
        self._campaign.acked -= sum(map(len, self._history.acked.values()))
        self._world.loop.bury()


def live_long(seed: int, *, simulated_s: float, brokers: int = 3) -> Campaign:
    """Let a cluster live for as long; raises what was found, as `run_campaign` does."""
    campaign, ids = Campaign(seed), range(brokers)

    async def main(world: SimWorld, history: History, probe: Probe) -> None:
        for broker_id in ids:
            await world.start_broker(broker_id)
        await create_topic(world, brokers)
        life = _LongLife(world, history, probe, ids, campaign)
        end = world.loop.time() + simulated_s
        while world.loop.time() < end:
            await life.shift()
        campaign.acked += sum(map(len, history.acked.values()))
        for broker_id in ids:
            await world.stop_broker(broker_id)

    simulate(
        campaign,
        main,
        partitions=PARTITIONS,
        values=VALUES,
        pace=Pace.drawn(seed),
        time_limit_s=simulated_s + REST_S_MAX,
        watches_loop=False,
    )
    return campaign
