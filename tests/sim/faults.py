"""Random faults from a seed while clients work; at the end everything is repaired."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.sim.history import History
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import SimWorld, host_name

__all__ = ["Faults"]

EVERYWHERE = ("crash", "crash", "power_loss_of_all", "lose_session", "restart_cleanly")
AMONG_SEVERAL = (*EVERYWHERE, "cut", "isolate")
"""A kind that is listed twice happens twice as often."""


class Faults:
    """`run` returns when everything is up and connected again.

    Faults of two brokers may overlap, those of one do not. `kinds` are some of crash,
    power_loss_of_all, cut, isolate, lose_session, restart_cleanly.
    """

    def __init__(
        self,
        world: SimWorld,
        history: History,
        brokers: Sequence[int],
        kinds: Sequence[str] = (),
    ) -> None:
        self._world = world
        self._history = history
        self._brokers = brokers
        self._rng = SeededRng(world.rng.below(1 << 62))
        self._kinds = kinds or (EVERYWHERE if len(brokers) == 1 else AMONG_SEVERAL)
        self._free = set(brokers)
        self.done: list[str] = []

    async def run(self, count: int) -> None:
        """Cause `count` faults in parallel streams, one fewer than there are brokers."""
        streams = max(1, len(self._brokers) - 1)
        await asyncio.gather(*(self._stream(count // streams or 1) for _ in range(streams)))

    async def _stream(self, count: int) -> None:
        for _ in range(count):
            await self._pause(1.5)
            free = sorted(self._free)
            if not free:
                continue
            broker_id = free[self._rng.below(len(free))]
            kind = self._kinds[self._rng.below(len(self._kinds))]
            self.done.append(f"{kind} {broker_id}")
            await self._one(kind, broker_id)

    async def _one(self, kind: str, broker_id: int) -> None:
        if kind == "power_loss_of_all":
            await self._power_loss_of_all()
            return
        self._free.discard(broker_id)
        faults: dict[str, Callable[[int], Awaitable[None]]] = {
            "crash": self._crash,
            "cut": self._cut,
            "isolate": self._isolate,
            "lose_session": self._lose_session,
            "restart_cleanly": self._restart_cleanly,
        }
        await faults[kind](broker_id)
        self._free.add(broker_id)

    async def _pause(self, longest_s: float) -> None:
        """Short pauses are as frequent as long ones, so that races of milliseconds occur too."""
        await asyncio.sleep(longest_s / 2 ** self._rng.below(8))

    async def _crash(self, broker_id: int) -> None:
        """Restart it sometimes before its session has expired, sometimes long after."""
        self._world.crash(broker_id, power_loss=self._rng.below(2) == 0)
        if len(self._brokers) == 1:
            self._history.life += 1
        await self._pause(20.0)
        await self._world.restart(broker_id)

    async def _power_loss_of_all(self) -> None:
        """Of all brokers that run and have no other fault."""
        if len(self._free) < len(self._brokers):
            return
        self._free.clear()
        for broker_id in self._brokers:
            self._world.crash(broker_id, power_loss=True)
        self._history.life += 1
        for broker_id in self._shuffled():
            await self._pause(5.0)
            await self._world.restart(broker_id)
        self._free.update(self._brokers)

    async def _cut(self, broker_id: int) -> None:
        """Cut one direction between two brokers."""
        other = self._brokers[(self._brokers.index(broker_id) + 1) % len(self._brokers)]
        way = host_name(broker_id), host_name(other)
        self._world.net.cut(*way)
        await self._pause(60.0)
        self._world.net.heal(*way)

    async def _isolate(self, broker_id: int) -> None:
        """Cut it off from the other brokers, but not from clients and the store."""
        name = host_name(broker_id)
        others = [host_name(other) for other in self._brokers if other != broker_id]
        self._world.net.isolate(name, others)
        await self._pause(60.0)
        for other in others:
            self._world.net.heal(name, other)
            self._world.net.heal(other, name)

    async def _lose_session(self, broker_id: int) -> None:
        """Suspend the session, then expire it while the broker works on and learns it late."""
        session = self._world.session(broker_id)
        session.suspend()
        await self._pause(10.0)
        if self._rng.below(2) == 0:
            session.expire()
            await self._pause(10.0)
        session.resume()

    async def _restart_cleanly(self, broker_id: int) -> None:
        await self._world.stop_broker(broker_id)
        await self._pause(10.0)
        await self._world.start_broker(broker_id)

    def _shuffled(self) -> list[int]:
        left = list(self._brokers)
        return [left.pop(self._rng.below(len(left))) for _ in self._brokers]
