"""A reader of committed records that follows all partitions during a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.sim.clients import retry_until_ready
from tests.sim.history import History
from tests.support.transaction_history import TransactionHistory
from tidemill.client.consuming.consumer import READ_COMMITTED, AtOffset, Consumer
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.client.network.offset_lookup import LATEST_TIMESTAMP, list_offsets
from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.testing.sim.world import SimWorld

__all__ = ["CommittedReader"]

POLL_S = 0.5


class CommittedReader:
    """Reads until `is_over`, then as far as it has come."""

    def __init__(
        self,
        world: SimWorld,
        history: History,
        seen: TransactionHistory,
        partitions: Sequence[TopicPartition],
    ) -> None:
        self._world = world
        self._history = history
        self._seen = seen
        self._partitions = partitions
        self._life = -1
        self.passed: dict[TopicPartition, range] = {}
        """The offsets that it went through since logs last may have become shorter."""

    async def run(self, is_over: Callable[[], bool]) -> None:
        net, bootstrap = self._world.client_net("reader"), self._world.bootstrap
        async with ClusterClient(net, bootstrap) as own, ClusterClient(net, bootstrap) as asking:
            consumer = Consumer(own, isolation_level=READ_COMMITTED)
            while not is_over():
                if self._life != self._history.life:
                    consumer = await self._begin(own)
                await self._read(consumer)
                await self._ask_stable(asking)

    async def _begin(self, cluster: ClusterClient) -> Consumer:
        """From the start: after a power loss, what was not durable may have gone (I8)."""
        self._life = self._history.life
        self.passed = {partition: range(0) for partition in self._partitions}
        consumer = Consumer(cluster, isolation_level=READ_COMMITTED)
        for topic in sorted({partition.topic for partition in self._partitions}):
            await retry_until_ready(lambda topic=topic: consumer.assign(topic, AtOffset(0)))
        return consumer

    async def _read(self, consumer: Consumer) -> None:
        try:
            polled = await consumer.poll(POLL_S)
        except (ClientError, KafkaError):
            await asyncio.sleep(POLL_S)
            return
        if self._life != self._history.life:
            return
        for fetched in polled:
            self._seen.read(TopicPartition(fetched.topic, fetched.partition), fetched.records)
        self.passed = {one: range(consumer.positions[one]) for one in self._partitions}

    async def _ask_stable(self, cluster: ClusterClient) -> None:
        """I23: the end that a committed reader is told never goes back."""
        if self._history.stale_hosts:
            return  # a host whose clock stood still may answer from the past
        life = self._life
        known = {one: self._seen.known_stable(one) for one in self._partitions}
        try:
            found = await list_offsets(
                cluster,
                dict.fromkeys(self._partitions, LATEST_TIMESTAMP),
                isolation_level=READ_COMMITTED,
            )
        except (ClientError, KafkaError):
            return
        if life != self._history.life or self._history.stale_hosts:
            return
        for partition, listed in found.items():
            self._seen.stable_offset(partition, listed.offset, known_before=known[partition])
