"""Things that go wrong while clients work, as a seed says; afterwards everything heals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.sim.history import History
from tidemill.core.rng import SeededRng
from tidemill.testing.sim_world import SimWorld, host_name

__all__ = ["Faults"]


class Faults:
    """One fault at a time, with pauses; `run` returns when all brokers are up and connected."""

    def __init__(self, world: SimWorld, history: History, brokers: Sequence[int]) -> None:
        self._world = world
        self._history = history
        self._brokers = brokers
        self._rng = SeededRng(world.rng.below(1 << 62))
        self._kinds: Sequence[Callable[[int], Awaitable[None]]] = (
            self._crash,
            self._crash,
            self._power_loss_of_all,
            self._cut,
            self._isolate,
            self._lose_session,
            self._restart_cleanly,
        )
        self.done: list[str] = []

    async def run(self, count: int) -> None:
        for _ in range(count):
            await self._pause(0.1, 1.0)
            kind = self._kinds[self._rng.below(len(self._kinds))]
            broker_id = self._brokers[self._rng.below(len(self._brokers))]
            self.done.append(f"{kind.__name__} {broker_id}")
            await kind(broker_id)

    async def _pause(self, shortest_s: float, longest_s: float) -> None:
        await asyncio.sleep(shortest_s + (longest_s - shortest_s) * self._rng.below(1000) / 1000)

    async def _crash(self, broker_id: int) -> None:
        """Sometimes back before its session is over, sometimes long after."""
        self._world.crash(broker_id, power_loss=self._rng.below(2) == 0)
        await self._pause(0.01, 15.0)
        await self._world.restart(broker_id)

    async def _power_loss_of_all(self, _broker_id: int) -> None:
        for broker_id in self._brokers:
            self._world.crash(broker_id, power_loss=True)
        self._history.life += 1
        for broker_id in self._shuffled():
            await self._pause(0.01, 5.0)
            await self._world.restart(broker_id)

    async def _cut(self, broker_id: int) -> None:
        """One direction between two brokers."""
        other = self._brokers[(self._brokers.index(broker_id) + 1) % len(self._brokers)]
        self._world.net.cut(host_name(broker_id), host_name(other))
        await self._pause(0.1, 40.0)
        self._world.net.heal_all()

    async def _isolate(self, broker_id: int) -> None:
        """From the other brokers, not from the clients, nor from the store."""
        others = [host_name(other) for other in self._brokers if other != broker_id]
        self._world.net.isolate(host_name(broker_id), others)
        await self._pause(0.1, 40.0)
        self._world.net.heal_all()

    async def _lose_session(self, broker_id: int) -> None:
        """Suspended, then given up by the store while the broker works on; it learns it late."""
        session = self._world.session(broker_id)
        session.suspend()
        await self._pause(0.1, 5.0)
        if self._rng.below(2) == 0:
            session.expire()
            await self._pause(0.1, 5.0)
        session.resume()

    async def _restart_cleanly(self, broker_id: int) -> None:
        await self._world.stop_broker(broker_id)
        await self._pause(0.01, 10.0)
        await self._world.start_broker(broker_id)

    def _shuffled(self) -> list[int]:
        left = list(self._brokers)
        return [left.pop(self._rng.below(len(left))) for _ in self._brokers]
