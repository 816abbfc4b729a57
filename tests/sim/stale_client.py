"""A client that does not follow the metadata: it asks every broker, whoever leads.

Real clients ask a former leader until it refuses them. What such a broker answers must hold, too:
an end is never smaller than one that was told before the question (I9), and what it gives to read
is what everybody reads (I2, I8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.sim.history import History
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import ClientError
from tidemill.client.network.offset_lookup import LATEST_TIMESTAMP
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import PORT, SimWorld, host_name
from tidemill.wire.batch import iter_headers
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidemill.wire.records import iter_records

__all__ = ["StaleClient"]

TIMEOUT_S = 30.0
PAUSE_S_MAX = 0.4
FETCH_WAIT_MS = 2_000


class StaleClient:
    """Asks one broker for as long as `is_over` says False."""

    def __init__(
        self,
        world: SimWorld,
        broker_id: int,
        history: History,
        partitions: Sequence[TopicPartition],
        *,
        rack: str = "",
        pause_s_max: float = PAUSE_S_MAX,
    ) -> None:
        """One that names a `rack` is served by followers, too (KIP-392)."""
        self._world = world
        self._broker_id = broker_id
        self._history = history
        self._partitions = partitions
        self._rack = rack
        self._pause_s_max = pause_s_max
        self._rng = SeededRng(world.rng.below(1 << 62))

    async def run(self, is_over: Callable[[], bool]) -> None:
        net = self._world.client_net(f"stale-{self._broker_id}")
        while not is_over():
            try:
                connection = await BrokerConnection.open(
                    net, host_name(self._broker_id), PORT, timeout_s=TIMEOUT_S
                )
            except ClientError:
                await asyncio.sleep(self._pause_s_max)
                continue
            try:
                while not is_over():
                    await self._ask(connection)
                    await asyncio.sleep(self._pause_s_max / 2 ** self._rng.below(6))
            except ClientError:
                pass
            finally:
                connection.close()

    async def _ask(self, connection: BrokerConnection) -> None:
        partition = self._partitions[self._rng.below(len(self._partitions))]
        if self._rng.below(2):
            await self._list_offsets(connection, partition)
        else:
            await self._fetch(connection, partition)

    async def _list_offsets(self, connection: BrokerConnection, partition: TopicPartition) -> None:
        life, known = self._history.life, self._history.known_end(partition)
        wanted = ListOffsetsPartition(
            partition_index=partition.partition, timestamp=LATEST_TIMESTAMP
        )
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=partition.topic, partitions=[wanted])]
        )
        response = await connection.request(request, ListOffsetsResponse, timeout_s=TIMEOUT_S)
        found = response.topics[0].partitions[0]
        if not found.error_code and life == self._history.life:
            self._history.end_offset(partition, found.offset, known_before=known)

    async def _fetch(self, connection: BrokerConnection, partition: TopicPartition) -> None:
        """Near the end; it waits there for what is not readable yet."""
        life, end = self._history.life, self._history.known_end(partition)
        image = self._world.broker(self._broker_id).cluster.image.topics.get(partition.topic)
        if image is None:
            return
        wanted = FetchPartition(
            partition=partition.partition, fetch_offset=max(0, end - self._rng.below(3))
        )
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            rack_id=self._rack,
            topics=[FetchTopic(topic_id=image.topic_id, partitions=[wanted])],
        )
        response = await connection.request(request, FetchResponse, timeout_s=TIMEOUT_S)
        for topic in response.responses:
            for data in topic.partitions:
                if data.records and life == self._history.life:
                    self._read(partition, bytes(data.records))

    def _read(self, partition: TopicPartition, data: bytes) -> None:
        for position, header in iter_headers(memoryview(data)):
            batch = memoryview(data)[position : position + header.size_bytes]
            self._history.read(partition, iter_records(batch, header))
