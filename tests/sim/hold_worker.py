"""Clients of held records: one that sends, cancels and moves, and one that reads all along."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.sim.clients import retry_until_ready
from tests.sim.hold_draws import HoldDraws
from tests.sim.hold_history import Asked, HoldHistory
from tidemill.client.consuming.consumer import (
    EARLIEST,
    READ_COMMITTED,
    Consumer,
    FetchedBatches,
)
from tidemill.client.consuming.visible_batches import visible_batches
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.client.producing.producer import Producer
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import SimWorld
from tidemill.wire import header_names as names
from tidemill.wire.batch import NO_PRODUCER_ID
from tidemill.wire.records import Header, iter_records

__all__ = ["HoldReader", "HoldWorker"]

DELIVERY_TIMEOUT_S = 300.0
PAUSE_S_MAX = 2.0
PADDING_BYTES = 150
POLL_S = 0.5


class HoldWorker:
    """One client that runs random operations from its seed."""

    def __init__(
        self,
        world: SimWorld,
        number: int,
        seen: HoldHistory,
        partitions: Sequence[TopicPartition],
    ) -> None:
        self._world = world
        self._number = number
        self._seen = seen
        self._partitions = partitions
        self._rng = SeededRng(world.rng.below(1 << 62))
        self._draws = HoldDraws(world, seen, self._rng)
        self._made = 0

    async def run(self, operations: int) -> None:
        """Run that many operations, one after the other."""
        net, bootstrap = self._world.client_net(f"client-{self._number}"), self._world.bootstrap
        async with (
            ClusterClient(net, bootstrap) as own,
            Producer(
                own, self._world.clock, idempotent=True, delivery_timeout_s=DELIVERY_TIMEOUT_S
            ) as producer,
        ):
            for _ in range(operations):
                if self._seen.tickets and self._rng.below(4) == 0:
                    await self._command()
                else:
                    await self._send_some(producer)
                await asyncio.sleep(PAUSE_S_MAX / 2 ** self._rng.below(9))

    async def _send_some(self, producer: Producer) -> None:
        """A few records at once, which may get into one batch."""
        partition = self._partitions[self._rng.below(len(self._partitions))]
        sends = []
        for _ in range(1 + self._rng.below(4)):
            value = self._value(b"r")
            headers, asked = self._draws.record(partition)
            self._seen.ask(value, asked)
            delivery = await retry_until_ready(
                lambda value=value, headers=headers: producer.send(
                    partition.topic, value, partition=partition.partition, headers=headers
                )
            )
            sends.append((value, delivery))
        for value, delivery in sends:
            self._seen.sent(partition, int(await delivery.offset()), value)

    async def _command(self) -> None:
        """Cancel or move something, from a producer of its own; it may come too late."""
        place = self._rng.below(len(self._seen.tickets))
        partition, ticket, message_id = self._seen.tickets[place]
        target = message_id if message_id is not None and self._rng.below(2) else ticket
        named = target if isinstance(target, bytes) else b"%d" % target
        headers: list[Header] = [(names.TARGET, named)]
        if self._rng.below(3):
            value, asked = self._value(b"c"), Asked("cancel", target=target)
            headers.append((names.COMMAND, b"cancel"))
        else:
            due, asked = self._draws.due(Asked("move", target=target))
            value = self._value(b"m")
            headers += [(names.COMMAND, b"move"), due]
        self._seen.ask(value, asked)
        await self._send_command(partition, value, headers)

    async def _send_command(
        self, partition: TopicPartition, value: bytes, headers: Sequence[Header]
    ) -> None:
        world = self._world
        try:
            async with (
                ClusterClient(world.client_net(f"orders-{self._number}"), world.bootstrap) as own,
                Producer(
                    own, world.clock, idempotent=True, delivery_timeout_s=DELIVERY_TIMEOUT_S
                ) as producer,
            ):
                delivery = await retry_until_ready(
                    lambda: producer.send(
                        partition.topic, value, partition=partition.partition, headers=headers
                    )
                )
                self._seen.sent(partition, int(await delivery.offset()), value)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_RECORD:
                raise
            self._seen.refused.add(value)

    def _value(self, kind: bytes) -> bytes:
        self._made += 1
        padding = b"." * self._rng.below(PADDING_BYTES)
        return kind + b"%d/%06d" % (self._number, self._made) + padding


class HoldReader:
    """Reads all partitions until `is_over`; begins again where a log was cut or has gone."""

    def __init__(
        self, world: SimWorld, seen: HoldHistory, topic: str, isolation_level: int
    ) -> None:
        self._world = world
        self._seen = seen
        self._topic = topic
        self._isolation_level = isolation_level

    async def run(self, is_over: Callable[[], bool]) -> None:
        net = self._world.client_net(f"reader-{self._isolation_level}")
        async with ClusterClient(net, self._world.bootstrap) as own:
            consumer = await self._begin(own)
            while not is_over():
                try:
                    polled = await consumer.poll_batches(POLL_S)
                except ClientError:
                    await asyncio.sleep(POLL_S)
                    continue
                except KafkaError:
                    consumer = await self._begin(own)
                    continue
                for fetched in polled:
                    self._take(fetched)

    def _take(self, fetched: FetchedBatches) -> None:
        _check_named(fetched)
        records = [
            record
            for view, header in visible_batches(fetched)
            for record in iter_records(view, header)
            if record.offset >= fetched.from_offset
        ]
        is_committed = self._isolation_level == READ_COMMITTED
        self._seen.read(fetched.partition, records, is_committed=is_committed)

    async def _begin(self, cluster: ClusterClient) -> Consumer:
        consumer = Consumer(cluster, max_wait_ms=200, isolation_level=self._isolation_level)
        await retry_until_ready(lambda: consumer.assign(self._topic, EARLIEST))
        return consumer


def _check_named(fetched: FetchedBatches) -> None:
    """An answer that passes over something names no aborted transaction without a batch in it.

    kafkajs takes in one entry per record: it would show the next aborted record.
    """
    headers = [header for _, header in fetched.batches]
    if not any(one.is_control and one.producer_id == NO_PRODUCER_ID for one in headers):
        return  # without a skip batch it may be what is stored, and its list as Kafka's is
    sent = {(one.producer_id, one.base_offset) for one in headers if not one.is_control}
    for named in fetched.aborted:
        place = named.producer_id, named.first_offset
        assert place in sent, f"T34: {place} is named aborted, and is not in the answer"
