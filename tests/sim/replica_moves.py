"""Replicas that are moved around while clients work; at the end every broker has all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.sim.clients import retry_until_ready
from tidemill.client.admin.replica_admin import list_reassignments, reassign, set_draining
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import SimWorld

__all__ = ["ReplicaMoves"]

RETRY_S = 1.0
ATTEMPTS_MAX = 300
PASSING = {ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
"""Brokers are down, or nothing is being moved any more."""


class ReplicaMoves:
    """Moves partitions by the wire, as an administrator does."""

    def __init__(
        self,
        world: SimWorld,
        rng: SeededRng,
        partitions: Sequence[TopicPartition],
        brokers: Sequence[int],
    ) -> None:
        self._world = world
        self._rng = rng
        self._partitions = partitions
        self._brokers = brokers

    async def reassign(self, pause: Callable[[float], Awaitable[None]]) -> None:
        """Move one partition somewhere, sometimes change one's mind, and back to all brokers."""
        partition = self._partitions[self._rng.below(len(self._partitions))]
        async with self._client() as cluster:
            target = self._shuffled()[: 1 + self._rng.below(len(self._brokers))]
            await self._try(cluster, partition, target)
            await pause(20.0)
            if self._rng.below(3) == 0:
                await self._try(cluster, partition, None)
                await pause(5.0)
            await self._spread(cluster, [partition])

    async def drain(self, broker_id: int, pause: Callable[[float], Awaitable[None]]) -> None:
        """Leave a place free, and let the controller move what the broker has there."""
        others = [one for one in self._brokers if one != broker_id]
        async with self._client() as cluster:
            for partition in self._partitions:
                stays = others[self._rng.below(len(others))]
                await self._try(cluster, partition, [broker_id, stays])
            await pause(20.0)
            await retry_until_ready(lambda: set_draining(cluster, broker_id, is_draining=True))
            await pause(40.0)
            await retry_until_ready(lambda: set_draining(cluster, broker_id, is_draining=False))
            await self._spread(cluster, self._partitions)

    async def _spread(self, cluster: ClusterClient, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            target = self._shuffled()
            for _ in range(ATTEMPTS_MAX):
                if await self._try(cluster, partition, target):
                    break
                await asyncio.sleep(RETRY_S)
            else:
                raise AssertionError(f"{partition} cannot be spread any more")
        for _ in range(ATTEMPTS_MAX):
            moving = await retry_until_ready(lambda: list_reassignments(cluster))
            if not any(one.partition in partitions for one in moving):
                return
            await asyncio.sleep(RETRY_S)
        raise AssertionError(f"I16: a move does not end: {moving}")

    async def _try(
        self, cluster: ClusterClient, partition: TopicPartition, target: Sequence[int] | None
    ) -> bool:
        """Whether it was accepted; refused for now is no failure."""

        async def attempt() -> bool:
            refused = await reassign(cluster, {partition: target})
            error = refused.get(partition)
            if error is not None and error.code not in PASSING:
                raise KafkaError(error.code, error.detail)
            return error is None

        return await retry_until_ready(attempt)

    def _client(self) -> ClusterClient:
        return ClusterClient(self._world.client_net("mover"), self._world.bootstrap)

    def _shuffled(self) -> list[int]:
        left = list(self._brokers)
        return [left.pop(self._rng.below(len(left))) for _ in self._brokers]
