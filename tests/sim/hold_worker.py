"""Clients of held records: one that sends, cancels and moves, and one that reads all along."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.sim.clients import retry_until_ready
from tests.sim.hold_history import Asked, HoldHistory
from tidemill.client.consuming.consumer import EARLIEST, Consumer
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.client.producing.producer import Producer
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.world import SimWorld
from tidemill.wire import header_names as names
from tidemill.wire.records import Header

__all__ = ["HoldReader", "HoldWorker"]

DELIVERY_TIMEOUT_S = 300.0
PAUSE_S_MAX = 2.0
DELAY_MS_MAX = 20_000
FAR_MS = 3_600_000
"""Longer than any run."""
FAR_ONE_IN = 8
PADDING_BYTES = 150
POLL_S = 0.5
SCHEDULE = b"*/5 * * * * *"


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
        self._made = 0
        self._tickets: list[tuple[TopicPartition, int, bytes | None]] = []

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
                if self._tickets and self._rng.below(4) == 0:
                    await self._command()
                else:
                    await self._send_some(producer)
                await asyncio.sleep(PAUSE_S_MAX / 2 ** self._rng.below(9))

    async def _send_some(self, producer: Producer) -> None:
        """A few records at once, which may get into one batch."""
        partition = self._partitions[self._rng.below(len(self._partitions))]
        sends = []
        for _ in range(1 + self._rng.below(4)):
            value, headers, asked = self._drawn(partition)
            self._seen.ask(value, asked)
            delivery = await retry_until_ready(
                lambda value=value, headers=headers: producer.send(
                    partition.topic, value, partition=partition.partition, headers=headers
                )
            )
            sends.append((value, asked, delivery))
        for value, asked, delivery in sends:
            offset = int(await delivery.offset())
            self._seen.sent(partition, offset, value)
            if asked.kind != "plain":
                self._tickets.append((partition, offset, asked.message_id))

    def _drawn(self, partition: TopicPartition) -> tuple[bytes, list[Header], Asked]:
        value = self._value(b"r")
        kind = self._rng.below(100)
        headers: list[Header] = []
        if self._tickets and self._rng.below(4) == 0:  # sent on with the headers of a release
            known = [ticket for one, ticket, _ in self._tickets if one == partition]
            headers += [(names.TICKET, b"%d" % ticket) for ticket in known[-1:]]
        if kind < 30:
            return value, headers, Asked("plain")
        message_id = b"id-%d" % self._rng.below(12) if self._rng.below(3) == 0 else None
        if kind < 34:
            message_id = b"tick-%d" % self._rng.below(2)
            headers += [(names.SCHEDULE, SCHEDULE), (names.MESSAGE_ID, message_id)]
            return value, headers, Asked("schedule", message_id=message_id, is_far=True)
        due, asked = self._due(Asked("hold", message_id=message_id))
        headers.append(due)
        if message_id is not None:
            headers.append((names.MESSAGE_ID, message_id))
        return value, headers, asked

    def _due(self, asked: Asked) -> tuple[Header, Asked]:
        """A request for a time, of either kind, and when that is at the earliest."""
        is_far = self._rng.below(FAR_ONE_IN) == 0
        delay_ms = self._rng.below(DELAY_MS_MAX) + is_far * FAR_MS
        earliest_s = self._world.loop.time() + delay_ms / 1000
        if self._rng.below(2):
            header = names.DELAY_MS, b"%d" % delay_ms
            return header, asked._replace(earliest_s=earliest_s, is_delay=True, is_far=is_far)
        header = names.DELIVER_AT, b"%d" % (self._world.clock.wall_ms() + delay_ms)
        # The wall clock shows whole milliseconds: it may be just before the next one.
        return header, asked._replace(earliest_s=earliest_s - 0.001, is_far=is_far)

    async def _command(self) -> None:
        """Cancel or move something, from a producer of its own; it may come too late."""
        place = self._rng.below(len(self._tickets))
        partition, ticket, message_id = self._tickets[place]
        target = message_id if message_id is not None and self._rng.below(2) else ticket
        named = target if isinstance(target, bytes) else b"%d" % target
        headers: list[Header] = [(names.TARGET, named)]
        if self._rng.below(3):
            value, asked = self._value(b"c"), Asked("cancel", target=target)
            headers.append((names.COMMAND, b"cancel"))
        else:
            due, asked = self._due(Asked("move", target=target))
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

    def __init__(self, world: SimWorld, seen: HoldHistory, topic: str) -> None:
        self._world = world
        self._seen = seen
        self._topic = topic
        self.records = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        async with ClusterClient(self._world.client_net("reader"), self._world.bootstrap) as own:
            consumer = await self._begin(own)
            while not is_over():
                try:
                    polled = await consumer.poll(POLL_S)
                except ClientError:
                    await asyncio.sleep(POLL_S)
                    continue
                except KafkaError:
                    consumer = await self._begin(own)
                    continue
                for fetched in polled:
                    partition = TopicPartition(fetched.topic, fetched.partition)
                    self._seen.read(partition, fetched.records)
                    self.records += len(fetched.records)

    async def _begin(self, cluster: ClusterClient) -> Consumer:
        consumer = Consumer(cluster, max_wait_ms=200)
        await retry_until_ready(lambda: consumer.assign(self._topic, EARLIEST))
        return consumer
