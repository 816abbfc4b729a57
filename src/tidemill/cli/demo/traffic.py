"""The demo's producer and consumer: librdkafka if it is installed, else our own client.

One event loop drives both, and neither blocks it for long. Offsets have no holes in a new topic, so
the reader detects missing and duplicate records by their offsets.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Protocol, final

from tidemill.client.consuming.consumer import EARLIEST, Consumer
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.producing.producer import Producer
from tidemill.core.clock import Clock
from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import TidemillError
from tidemill.core.net import AsyncioNet

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["Reading", "Traffic", "open_traffic"]

_POLL_S = 0.02
_CONSUME_RECORDS = 5_000
_FLUSH_S = 10


@final
class Reading:
    """What the reader has received so far."""

    def __init__(self) -> None:
        self.records = 0
        self.size_bytes = 0
        self.latencies_ms: list[int] = []
        """From creation to arrival, one record per poll; bounded by the number of polls."""
        self._next: dict[int, int] = {}

    def saw(self, partition: int, offset: int, size_bytes: int) -> None:
        """Count a record; an offset that is not the next one means a lost or duplicate record."""
        expected = self._next.get(partition, 0)
        if offset != expected:
            raise TidemillError(f"partition {partition}: expected offset {expected}, got {offset}")
        self._next[partition] = offset + 1
        self.records += 1
        self.size_bytes += size_bytes


class Traffic(Protocol):
    """A producer and a consumer of one topic."""

    name: str
    reading: Reading

    async def send(self, key: bytes, value: bytes) -> None: ...

    async def pump(self) -> None:
        """Let producer and consumer work for a moment."""
        ...

    async def flush(self) -> None:
        """Wait until everything sent is acknowledged."""
        ...

    async def close(self) -> None: ...


async def open_traffic(broker: Endpoint, topic: str, partitions: int, clock: Clock) -> Traffic:
    """Traffic through the fastest client that is installed."""
    if importlib.util.find_spec("confluent_kafka") is not None:
        return _LibrdkafkaTraffic(broker, topic, partitions, clock)
    own = _OwnTraffic(broker, topic, clock)
    await own.open()
    return own


@final
class _OwnTraffic:
    def __init__(self, broker: Endpoint, topic: str, clock: Clock) -> None:
        self.name = "tidemill's own client"
        self.reading = Reading()
        self._topic = topic
        self._clock = clock
        self._sending = ClusterClient(AsyncioNet(), [broker])
        self._receiving = ClusterClient(AsyncioNet(), [broker])
        self._producer = Producer(self._sending, clock)
        self._consumer = Consumer(self._receiving, max_wait_ms=int(_POLL_S * 1000))

    async def open(self) -> None:
        await self._producer.__aenter__()
        await self._consumer.assign(self._topic, EARLIEST)

    async def send(self, key: bytes, value: bytes) -> None:
        await self._producer.send(self._topic, value, key=key)

    async def pump(self) -> None:
        for fetched in await self._consumer.poll(_POLL_S):
            for record in fetched.records:
                self.reading.saw(fetched.partition, record.offset, len(record.value or b""))
            if fetched.records:
                age_ms = self._clock.wall_ms() - fetched.records[-1].timestamp
                self.reading.latencies_ms.append(age_ms)

    async def flush(self) -> None:
        await self._producer.flush()

    async def close(self) -> None:
        await self._producer.__aexit__(None, None, None)
        self._sending.close()
        self._receiving.close()


@final
class _LibrdkafkaTraffic:
    def __init__(self, broker: Endpoint, topic: str, partitions: int, clock: Clock) -> None:
        import confluent_kafka

        self.name = f"confluent-kafka {confluent_kafka.__version__}"
        self.reading = Reading()
        self._topic = topic
        self._clock = clock
        self._failure: str | None = None
        common = {"bootstrap.servers": str(broker), "log_level": 0}
        self._producer = confluent_kafka.Producer(common | {"linger.ms": 5, "acks": "all"})
        self._consumer = confluent_kafka.Consumer(
            common
            | {"group.id": "demo", "enable.auto.commit": False}
            | {"fetch.wait.max.ms": int(_POLL_S * 1000)}
        )
        self._consumer.assign(
            [confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)]
        )

    async def send(self, key: bytes, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
                return
            except BufferError:  # librdkafka's queue is full: let it send
                self._producer.poll(_POLL_S)

    def _delivered(self, error: object | None, message: Message) -> None:
        if error is not None:
            self._failure = str(error)

    async def pump(self) -> None:
        self._producer.poll(0)
        # `consume` alone waits for all records or the whole timeout; `poll` returns with the first.
        first = self._consumer.poll(_POLL_S)
        if first is not None:
            messages = [first, *self._consumer.consume(_CONSUME_RECORDS, timeout=0)]
            for message in messages:
                self._saw(message)
            age_ms = self._clock.wall_ms() - messages[-1].timestamp()[1]
            self.reading.latencies_ms.append(age_ms)
        if self._failure is not None:
            raise TidemillError(f"the producer failed: {self._failure}")

    def _saw(self, message: Message) -> None:
        if message.error() is not None:
            raise TidemillError(f"the consumer failed: {message.error()}")
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.reading.saw(partition, offset, len(message.value() or b""))

    async def flush(self) -> None:
        self._producer.flush(_FLUSH_S)

    async def close(self) -> None:
        self._consumer.close()
