"""A topic that is deleted and created again, while the clients of the first one work.

I34: nothing that was acknowledged before the deletion is found under the same name afterwards.
I1 holds for what is acknowledged after the creation.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import UUID

from tests.sim.clients import create_topic, drain, retry_until_ready
from tests.sim.replicas import eventually
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.client.producing.producer import Producer
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.testing.sim.world import SimWorld
from tidemill.wire.records import Record

__all__ = ["SecondTopic"]

NAME = TopicPartition("second", 0)
RECORDS = 5
IN_FLIGHT_TIMEOUT_S = 3.0
DELIVERY_TIMEOUT_S = 600.0


class SecondTopic:
    """Its generations, one after the other."""

    def __init__(self, world: SimWorld, brokers: int) -> None:
        self._world = world
        self._brokers = brokers
        self._replication = min(3, brokers)
        self._sent = 0

    async def delete_and_create(self) -> None:
        net, bootstrap = self._world.client_net("second"), self._world.bootstrap
        async with ClusterClient(net, bootstrap) as admin:
            await self._create(admin)
            await eventually(lambda: len(self._ids()) == 1)
            old = self._ids()
            before = await self._send(DELIVERY_TIMEOUT_S)
            await asyncio.gather(self._delete(admin), self._send(IN_FLIGHT_TIMEOUT_S))
            await self._create(admin)
            # Until a broker hears of the deletion it serves the old topic, and may.
            await eventually(lambda: len(self._ids()) == 1 and self._ids() != old)
        after = await self._send(DELIVERY_TIMEOUT_S)
        records = await retry_until_ready(self._drain)
        found = [bytes(record.value or b"") for record in records]
        returned = [value for value in before if value in found]
        assert not returned, f"I34: records of a deleted topic: {returned}"
        lost = [value for value in after if value not in found]
        assert not lost, f"I1: lost in {NAME}: {lost}"

    def _ids(self) -> set[UUID | None]:
        """The ids that the brokers know the topic by."""
        up = self._world.up_brokers()
        topics = [broker.cluster.image.topic(NAME.topic) for broker in up.values()]
        ids = {None if topic is None else topic.topic_id for topic in topics}
        return ids if len(up) == self._brokers else {*ids, None}

    async def _create(self, admin: ClusterClient) -> None:
        await retry_until_ready(
            lambda: create_topic(admin, NAME.topic, partitions=1, replication=self._replication)
        )

    async def _delete(self, admin: ClusterClient) -> None:
        async def attempt() -> None:
            refusal = (await Admin(admin).delete_topics([NAME.topic]))[NAME.topic]
            if refusal is not None and refusal.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise refusal

        await retry_until_ready(attempt)

    async def _drain(self) -> list[Record]:
        try:
            return await drain(self._world, NAME)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            # A broker that does not know the new topic yet.
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, NAME.topic) from error

    async def _send(self, timeout_s: float) -> list[bytes]:
        """Send some records; the values of those that were acknowledged."""
        acked: list[bytes] = []
        net, bootstrap = self._world.client_net("second"), self._world.bootstrap
        # At its end a producer reports what it could not deliver: here that is in doubt.
        with suppress(ClientError, KafkaError):
            async with (
                ClusterClient(net, bootstrap) as cluster,
                Producer(cluster, self._world.clock, delivery_timeout_s=timeout_s) as producer,
            ):
                for _ in range(RECORDS):
                    await self._send_one(producer, acked)
        return acked

    async def _send_one(self, producer: Producer, acked: list[bytes]) -> None:
        self._sent += 1
        value = b"%06d" % self._sent
        with suppress(ClientError, KafkaError):
            sent = await producer.send(NAME.topic, value, partition=NAME.partition)
            await sent.offset()
            acked.append(value)
