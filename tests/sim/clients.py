"""Clients of a simulated cluster, built on Tidemill's own client package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from tests.sim.history import History
from tests.sim.replicas import Brokers
from tidemill.client.admin.topic_admin import BROKER_DEFAULT, Admin
from tidemill.client.consuming.consumer import EARLIEST, READ_UNCOMMITTED, AtOffset, Consumer
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.client.network.offset_lookup import LATEST_TIMESTAMP, LEADER_MOVED, list_offsets
from tidemill.client.producing.producer import Producer
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.net import Net
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.records import Record

__all__ = ["Worker", "create_topic", "drain", "retry_until_ready"]

T = TypeVar("T")

DELIVERY_TIMEOUT_S = 600.0
READY_WITHIN_S = 120.0
"""Twice as long as the longest fault."""
RETRY_S = 0.2
PAUSE_S_MAX = 2.0
HASTY_ONE_IN = 5
HASTY_TIMEOUT_S = 1.0
SHORT_TOPIC_PREFIX = "short-"


async def drain(
    brokers: Brokers, partition: TopicPartition, *, isolation_level: int = READ_UNCOMMITTED
) -> list[Record]:
    """All records that a new consumer finds in a partition, from start to end."""
    async with ClusterClient(brokers.client_net(), brokers.bootstrap) as cluster:
        wanted = {partition: LATEST_TIMESTAMP}
        (end,) = (await list_offsets(cluster, wanted, isolation_level=isolation_level)).values()
        consumer = Consumer(cluster, isolation_level=isolation_level)
        await consumer.assign(partition.topic, EARLIEST, [partition.partition])
        records: list[Record] = []
        while consumer.positions[partition] < end.offset:
            for fetched in await consumer.poll(1.0):
                records += fetched.records
        return records


async def retry_until_ready(attempt: Callable[[], Awaitable[T]]) -> T:
    """Retry until the cluster is reachable and has a leader and a controller."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + READY_WITHIN_S
    while loop.time() < deadline:
        try:
            return await attempt()
        except ClientError:
            pass
        except KafkaError as error:
            if not error.code.retriable and error.code not in LEADER_MOVED:
                raise
        await asyncio.sleep(RETRY_S)
    return await attempt()


class Worker:
    """One client that runs random operations from its seed and records the answers."""

    def __init__(
        self,
        world: SimWorld,
        number: int,
        history: History,
        partitions: Sequence[TopicPartition],
        *,
        pause_s_max: float = PAUSE_S_MAX,
    ) -> None:
        self._world = world
        self._pause_s_max = pause_s_max
        self._number = number
        self._history = history
        self._partitions = partitions
        self._rng = SeededRng(world.rng.below(1 << 62))
        self._sent = 0
        self._topics: list[str] = []
        self._topics_made = 0

    async def run(self, operations: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """Run that many operations, one after the other, or until it is over."""
        net = self._world.client_net(f"client-{self._number}")
        bootstrap = self._world.bootstrap
        async with (
            ClusterClient(net, bootstrap) as cluster,
            ClusterClient(net, bootstrap) as own,
            Producer(
                own, self._world.clock, idempotent=True, delivery_timeout_s=DELIVERY_TIMEOUT_S
            ) as producer,
        ):
            for _ in range(operations):
                if is_over():
                    break
                if self._rng.below(HASTY_ONE_IN) == 0:
                    await self._produce_hastily(net)
                await self._one(cluster, producer)
                # Long enough on average that the load lasts as long as the faults do.
                await asyncio.sleep(self._pause_s_max / 2 ** self._rng.below(9))

    async def delete_topics(self) -> None:
        """Delete the topics that it has created and not deleted yet."""
        net, bootstrap = self._world.client_net(f"client-{self._number}"), self._world.bootstrap
        async with ClusterClient(net, bootstrap) as cluster:
            while self._topics:
                await self._delete_topic(cluster)

    async def _one(self, cluster: ClusterClient, producer: Producer) -> None:
        choice = self._rng.below(100)
        if choice < 60:
            await self._produce(producer)
        elif choice < 80:
            await self._fetch(cluster)
        elif choice < 90:
            await self._list_offsets(cluster)
        elif choice < 95:
            await self._create_topic(cluster)
        else:
            await self._delete_topic(cluster)

    def _partition(self) -> TopicPartition:
        return self._partitions[self._rng.below(len(self._partitions))]

    async def _produce(self, producer: Producer) -> None:
        """Send a few records at once and wait for their acknowledgements."""
        partition = self._partition()
        sends = []
        for _ in range(1 + self._rng.below(4)):
            self._sent += 1
            value = self._history.value(self._number, self._sent)
            send = partial(producer.send, partition.topic, value, partition=partition.partition)
            sends.append((value, await retry_until_ready(send)))
        for value, delivery in sends:
            self._history.sent(partition, await delivery.offset(), value)

    async def _produce_hastily(self, net: Net) -> None:
        """With acks=1: a leader that is cut off gets a tail of its own, which must go again."""
        partition = self._partition()
        with suppress(ClientError, KafkaError):
            async with (
                ClusterClient(net, self._world.bootstrap) as cluster,
                Producer(
                    cluster, self._world.clock, acks=1, delivery_timeout_s=HASTY_TIMEOUT_S
                ) as producer,
            ):
                for _ in range(1 + self._rng.below(3)):
                    self._sent += 1
                    value = self._history.hasty_value(self._number, self._sent)
                    await producer.send(partition.topic, value, partition=partition.partition)

    async def _fetch(self, cluster: ClusterClient) -> None:
        partition, life = self._partition(), self._history.life
        consumer = Consumer(cluster, max_wait_ms=50)
        acked = len(self._history.acked[partition])
        start = self._history.readable_from(partition)
        if self._rng.below(2):  # near the end, where records can still be lost
            start += max(0, acked - self._rng.below(4))
        else:
            start += self._rng.below(1 + acked)
        assign = partial(consumer.assign, partition.topic, AtOffset(start), [partition.partition])
        await retry_until_ready(assign)
        try:
            polled = await consumer.poll(0.2)
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return  # from a replaced leader that does not know it yet: its log is shorter
        for fetched in polled:
            if life == self._history.life:
                self._history.read(partition, fetched.records)

    async def _list_offsets(self, cluster: ClusterClient) -> None:
        partition, life = self._partition(), self._history.life
        known = self._history.known_end(partition)
        found = await retry_until_ready(
            partial(list_offsets, cluster, {partition: LATEST_TIMESTAMP})
        )
        if life == self._history.life:
            self._history.end_offset(partition, found[partition].offset, known_before=known)

    async def _create_topic(self, cluster: ClusterClient) -> None:
        self._topics_made += 1
        name = f"{SHORT_TOPIC_PREFIX}{self._number}-{self._topics_made}"
        await retry_until_ready(partial(create_topic, cluster, name, partitions=2))
        self._topics.append(name)

    async def _delete_topic(self, cluster: ClusterClient) -> None:
        if self._topics:
            name = self._topics.pop(0)
            await retry_until_ready(partial(_delete, cluster, name))


async def create_topic(
    cluster: ClusterClient, name: str, *, partitions: int, replication: int = BROKER_DEFAULT
) -> None:
    """Create a topic that may be there already; to be tried again while brokers are down."""
    try:
        await Admin(cluster).create_topic(name, partitions=partitions, replication=replication)
    except KafkaError as error:
        if error.code is ErrorCode.INVALID_REPLICATION_FACTOR:  # too few are let in, or none
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, name) from error
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise  # else it is there from before, or the answer of an attempt was lost


async def _delete(cluster: ClusterClient, name: str) -> None:
    refusal = (await Admin(cluster).delete_topics([name]))[name]
    if refusal is not None and refusal.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise refusal
