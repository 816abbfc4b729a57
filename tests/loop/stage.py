"""A simulated broker over a counted disk, and short words for what is done to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, final

from tests.loop.callback_ledger import CallbackLedger
from tests.loop.counted_disk import CountedDisk
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import ErrorCode
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.api_keys import API_SPECS, load
from tidemill.wire.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tidemill.wire.generated.delete_topics import DeleteTopicsRequest
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.message import Message
from tidemill.wire.records import Record, build_batch

WIDE = 300
"""Partitions of a large request: several slices of whatever works in slices."""
TIMEOUT_S = 600.0
SETTLE_S = 130.0
"""Two checkpoints, and whatever a request left behind."""
FILLED_AT_ONCE = 50
_KEY_OF = {spec.name + "Request": key for key, spec in API_SPECS.items()}


@final
class Stage:
    """One broker and one connection to it."""

    def __init__(self, world: SimWorld, connection: BrokerConnection) -> None:
        self.world = world
        self.connection = connection

    async def ask(
        self, message: Message, version: int, *, refused: ErrorCode = ErrorCode.NONE
    ) -> Any:
        """The answer, which must be free of errors, but for the one that is expected."""
        _, response_type = load(_KEY_OF[type(message).__name__])
        answer = await self.connection.request(
            message, response_type, timeout_s=TIMEOUT_S, version=version
        )
        codes = {ErrorCode(code) for code in error_codes(answer)} - {ErrorCode.NONE}
        assert codes == {refused} - {ErrorCode.NONE}, f"{type(message).__name__}: {codes}"
        return answer

    async def settle(self) -> None:
        await asyncio.sleep(SETTLE_S)

    async def create(
        self, name: str, partitions: int = 1, *, replication: int = 1, **configs: object
    ) -> None:
        keys = {key.replace("_", "."): str(value) for key, value in configs.items()}
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication,
            configs=[CreatableTopicConfig(name=k, value=v) for k, v in keys.items()],
        )
        await self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)

    async def delete(self, name: str) -> None:
        await self.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=60_000), 5)

    async def produce(
        self,
        name: str,
        partitions: Iterable[int] = (0,),
        *,
        size: int = 100,
        key: bytes | None = None,
        acks: int = -1,
    ) -> None:
        """One batch of one record for each partition, all in one request."""
        record = Record(bytes(size), key=key, timestamp=self.world.clock.wall_ms())
        batch = bytes(build_batch([record]))
        data = [PartitionProduceData(index=i, records=batch) for i in partitions]
        topics = [TopicProduceData(name=name, partition_data=data)]
        await self.ask(ProduceRequest(acks=acks, timeout_ms=60_000, topic_data=topics), 9)

    async def fill(self, name: str, partitions: int, batches: int) -> None:
        """Small segments, one per batch, without many of them in one request."""
        await self.create(name, partitions, segment_bytes=1024)
        for _ in range(batches):
            for first in range(0, partitions, FILLED_AT_ONCE):
                some = range(first, min(partitions, first + FILLED_AT_ONCE))
                await self.produce(name, some, size=900)

    async def fetch(self, name: str, partitions: int = 1) -> None:
        """Everything from the start of each partition, as far as it fits."""
        wanted = [
            FetchPartition(partition=i, partition_max_bytes=1 << 20) for i in range(partitions)
        ]
        topics = [FetchTopic(topic=name, partitions=wanted)]
        await self.ask(FetchRequest(max_bytes=50 << 20, topics=topics), 12)


def error_codes(answer: object) -> Iterator[int]:
    """Every error code in an answer."""
    if isinstance(answer, list):
        for one in answer:
            yield from error_codes(one)
    elif isinstance(answer, Message):
        for name in answer.__slots__:
            value = getattr(answer, name)
            if name == "error_code":
                yield value
            else:
                yield from error_codes(value)


Drive = Callable[[Stage], Awaitable[None]]


def world_of(ledger: CallbackLedger, **values: object) -> SimWorld:
    """A simulated world, in which every callback of brokers is counted."""
    keys = {key.replace("_", "."): value for key, value in values.items()}
    return SimWorld(1, values=keys, watch_disk=lambda disk: CountedDisk(disk, ledger))


@asynccontextmanager
async def staged(world: SimWorld, broker_id: int = 0) -> AsyncIterator[Stage]:
    """The stage of a broker that runs."""
    async with ClusterClient(world.client_net(), world.bootstrap) as cluster:
        await cluster.refresh([])
        yield Stage(world, await cluster.connection(broker_id))


@asynccontextmanager
async def as_peer(stage: Stage) -> AsyncIterator[Stage]:
    """The same broker, asked as another broker asks it."""
    host, port = stage.world.broker(0).cluster.image.brokers[0].peer_endpoint
    net = stage.world.client_net("another")
    connection = await BrokerConnection.open(net, host, port, timeout_s=5.0)
    try:
        yield Stage(stage.world, connection)
    finally:
        connection.close()
