"""A broker goes from state to state as its table in docs/internals/replication.md says."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.replicas import eventually
from tests.support.state_machines import machines
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.testing.sim.world import SESSION_TIMEOUT_S, SimWorld

BROKER = machines["broker"]
WATCHED = 1
BEYOND_THE_LEASE_S = 0.75 * SESSION_TIMEOUT_S
"""A lease lasts two thirds of a session; the last renewal was up to a fifth of one ago."""


class Watch:
    """Looks at one broker after every event of the simulation, and notes each change of state."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self.steps: list[tuple[str, str]] = []
        self.state = "GONE"
        world.trace.probe = self.look

    def look(self) -> None:
        now = self._state_now()
        if now != self.state:
            self.steps.append((self.state, now))
            self.state = now

    def _state_now(self) -> str:
        life = self._world._lives.get(WATCHED)
        if life is None or not life.host.alive:
            return "GONE"
        cluster = life.broker.cluster
        if cluster._closed:
            return "GONE"
        if not cluster.lease.registered:
            return "UNREGISTERED"
        if cluster._membership.presence.leaving:
            return "LEAVING"
        if cluster.lease.fenced:
            return "FENCED"
        return "ACTIVE" if cluster.lease.is_held else "WAITING"

    def take(self) -> list[tuple[str, str]]:
        """The steps since the last call."""
        self.look()
        taken, self.steps = self.steps, []
        return taken

    async def until(self, state: str) -> None:
        await eventually(lambda: self.state == state)


async def _story(world: SimWorld) -> list[tuple[str, str]]:
    for broker_id in (0, 2):
        await world.start_broker(broker_id)
    watch = Watch(world)
    await world.start_broker(WATCHED)
    await watch.until("ACTIVE")
    seen = watch.take()
    world.session(WATCHED).suspend()
    await asyncio.sleep(BEYOND_THE_LEASE_S)
    world.session(WATCHED).resume()
    await watch.until("ACTIVE")
    seen += watch.take()
    world.session(WATCHED).suspend()
    await asyncio.sleep(2 * SESSION_TIMEOUT_S)
    assert watch.state == "WAITING"
    world.session(WATCHED).resume()
    await watch.until("ACTIVE")
    seen += watch.take()
    async with ClusterClient(world.client_net(), world.bootstrap) as cluster:
        await Admin(cluster).create_topic("orders", partitions=3, replication=3)
    await eventually(lambda: not world.broker(WATCHED).cluster.has_left)  # it leads one of these
    await world.stop_broker(WATCHED)
    seen += watch.take()
    await world.start_broker(WATCHED)
    await watch.until("ACTIVE")
    seen += watch.take()
    world.crash(WATCHED)
    return seen + watch.take()


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_takes_every_step_of_its_table_and_no_other(seed):
    world = SimWorld(seed)
    seen = world.run(_story)
    allowed = {(source, row.target) for row in BROKER.rows for source in row.sources}
    assert set(seen) == allowed
