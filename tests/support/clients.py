"""The stock clients behind one small interface: send messages, read records.

This file is simple on purpose: a failing test must point at the broker or the client, not at this
file. A client that lacks a feature (a codec, a custom partitioner) declares that in its class, and
the tests skip that combination.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, ClassVar, Protocol, final

import aiokafka
import confluent_kafka

from tests.support.coroutines import run

with warnings.catch_warnings():
    # It loads its schemas in a way that is deprecated in Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

__all__ = [
    "CLIENTS",
    "DEADLINE_S",
    "AioKafka",
    "Client",
    "Confluent",
    "KafkaPython",
    "Message",
    "Partitioner",
    "Place",
    "Record",
    "Sending",
]

DEADLINE_S = 30.0
LINGER_MS = 20
"""Long enough that the records of one test are sent as one batch."""

REQUEST_BYTES_MAX = 10_000_000
"""Large enough that no limit of a client hides the broker's."""

Partitioner = Callable[[bytes | None, list[int], list[int]], int]
Place = tuple[int, int]
"""Partition and offset; the offset is -1 if it is not known (acks=0)."""


@final
@dataclass(frozen=True, slots=True)
class Message:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Record:
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How to send; the defaults are those of a careful user."""

    acks: str = "all"
    codec: str = "none"
    idempotent: bool = False
    batch_bytes_max: int = 900_000
    partitioner: Partitioner | None = None


class Client(Protocol):
    name: ClassVar[str]
    codecs: ClassVar[tuple[str, ...]]

    def produce(
        self, bootstrap: str, topic: str, messages: Sequence[Message], how: Sending = ...
    ) -> list[Place]:
        """Send all messages and wait; the place of each one. Raises the client's own error."""
        ...

    def consume(
        self, bootstrap: str, topic: str, count: int, start: Mapping[int, int] = ...
    ) -> list[Record]:
        """The next `count` records, starting at these offsets by partition, in order of arrival."""
        ...

    def offsets_for_times(
        self, bootstrap: str, topic: str, times_ms: Sequence[int]
    ) -> list[int | None]:
        """For each time the first offset of partition 0 at or after it; None if there is none."""
        ...


FROM_THE_BEGINNING: Mapping[int, int] = {0: 0}


def _incomplete(client: Client, got: int, wanted: int) -> AssertionError:
    return AssertionError(f"{client.name} read {got} of {wanted} records in {DEADLINE_S:.0f} s")


@final
class Confluent:
    """librdkafka; from Python it has no custom partitioner, so the caller passes the partition."""

    name = "confluent-kafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        how: Sending = Sending(),  # noqa: B008 # frozen
    ) -> list[Place]:
        assert how.partitioner is None
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": how.acks,
                "compression.type": how.codec,
                "enable.idempotence": how.idempotent,
                "linger.ms": LINGER_MS,
                "batch.size": how.batch_bytes_max,
                "message.max.bytes": REQUEST_BYTES_MAX,
                "partitioner": "murmur2_random",
            }
        )
        places: list[Place] = [(-1, -1)] * len(messages)
        errors: list[confluent_kafka.KafkaError] = []

        def settle(index: int, error: confluent_kafka.KafkaError | None, sent: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                places[index] = (sent.partition(), sent.offset())

        for index, message in enumerate(messages):
            options: dict[str, Any] = {}
            if message.timestamp_ms is not None:
                options["timestamp"] = message.timestamp_ms
            if message.partition is not None:
                options["partition"] = message.partition
            producer.produce(
                topic,
                message.value,
                message.key,
                headers=list(message.headers),
                on_delivery=lambda error, sent, i=index: settle(i, error, sent),
                **options,
            )
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        if errors:
            raise confluent_kafka.KafkaException(errors[0])
        return places

    def consume(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        start: Mapping[int, int] = FROM_THE_BEGINNING,
    ) -> list[Record]:
        consumer = self.consumer(bootstrap)
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, p, o) for p, o in start.items()])
            return self.read(consumer, count)
        finally:
            consumer.close()

    def consumer(self, bootstrap: str, **options: Any) -> confluent_kafka.Consumer:
        """`fetch_wait_max_ms=10` means `fetch.wait.max.ms`; callbacks keep their underscores."""
        given = {
            name if callable(value) else name.replace("_", "."): value
            for name, value in options.items()
        }
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                **given,
            }
        )

    def read(self, consumer: confluent_kafka.Consumer, count: int) -> list[Record]:
        records: list[Record] = []
        deadline = monotonic() + DEADLINE_S
        while len(records) < count and monotonic() < deadline:
            for message in consumer.consume(count - len(records), 0.2):
                if message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
                records.append(self._record(message))
        if len(records) < count:
            raise _incomplete(self, len(records), count)
        return records

    def _record(self, message: confluent_kafka.Message) -> Record:
        return Record(
            message.topic(),
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
        )

    def offsets_for_times(
        self, bootstrap: str, topic: str, times_ms: Sequence[int]
    ) -> list[int | None]:
        consumer = self.consumer(bootstrap)
        try:
            found = [
                consumer.offsets_for_times(
                    [confluent_kafka.TopicPartition(topic, 0, time_ms)], timeout=DEADLINE_S
                )[0].offset
                for time_ms in times_ms
            ]
        finally:
            consumer.close()
        return [None if offset == confluent_kafka.OFFSET_END else offset for offset in found]


@final
class _PluggedPartitioner(kafka.partitioner.Partitioner):
    """Wraps a function in the form that kafka-python expects."""

    def __init__(self, function: Partitioner) -> None:
        self._function = function

    def partition(
        self, topic: str, _key: Any, key: bytes | None, _value: Any, _sent: Any, cluster: Any
    ) -> int:
        every = sorted(cluster.partitions_for_topic(topic))
        return self._function(key, every, every)


@final
class KafkaPython:
    """Its snappy needs a package that we do not install; aiokafka writes the same framing."""

    name = "kafka-python"
    codecs = ("none", "gzip", "lz4", "zstd")

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        how: Sending = Sending(),  # noqa: B008 # frozen
    ) -> list[Place]:
        options: dict[str, Any] = {}
        if how.partitioner is not None:
            options["partitioner"] = _PluggedPartitioner(how.partitioner)
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all" if how.acks == "all" else int(how.acks),
            compression_type=None if how.codec == "none" else how.codec,
            enable_idempotence=how.idempotent,
            linger_ms=LINGER_MS,
            batch_size=how.batch_bytes_max,
            max_request_size=REQUEST_BYTES_MAX,
            **options,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            done = [future.get(DEADLINE_S) for future in sent]
        finally:
            producer.close(DEADLINE_S)
        return [(place.partition, place.offset) for place in done]

    def consume(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        start: Mapping[int, int] = FROM_THE_BEGINNING,
    ) -> list[Record]:
        consumer = self.consumer(bootstrap)
        try:
            consumer.assign([kafka.TopicPartition(topic, p) for p in start])
            for partition, offset in start.items():
                consumer.seek(kafka.TopicPartition(topic, partition), offset)
            return self.read(consumer, count)
        finally:
            consumer.close()

    def consumer(self, bootstrap: str, **options: Any) -> kafka.KafkaConsumer:
        given = {"auto_offset_reset": "none", "enable_auto_commit": False, **options}
        return kafka.KafkaConsumer(bootstrap_servers=bootstrap, **given)

    def read(self, consumer: kafka.KafkaConsumer, count: int) -> list[Record]:
        records: list[Record] = []
        deadline = monotonic() + DEADLINE_S
        while len(records) < count and monotonic() < deadline:
            for found in consumer.poll(200, max_records=count - len(records)).values():
                records += [_plain_record(message) for message in found]
        if len(records) < count:
            raise _incomplete(self, len(records), count)
        return records

    def offsets_for_times(
        self, bootstrap: str, topic: str, times_ms: Sequence[int]
    ) -> list[int | None]:
        consumer = self.consumer(bootstrap)
        partition = kafka.TopicPartition(topic, 0)
        try:
            found = [consumer.offsets_for_times({partition: ms})[partition] for ms in times_ms]
        finally:
            consumer.close()
        return [None if place is None else place.offset for place in found]


@final
class AioKafka:
    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        how: Sending = Sending(),  # noqa: B008 # frozen
    ) -> list[Place]:
        return run(self._produce(bootstrap, topic, messages, how))

    async def _produce(
        self, bootstrap: str, topic: str, messages: Sequence[Message], how: Sending
    ) -> list[Place]:
        options: dict[str, Any] = {}
        if how.partitioner is not None:
            options["partitioner"] = how.partitioner
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all" if how.acks == "all" else int(how.acks),
            compression_type=None if how.codec == "none" else how.codec,
            enable_idempotence=how.idempotent,
            linger_ms=LINGER_MS,
            max_batch_size=how.batch_bytes_max,
            max_request_size=REQUEST_BYTES_MAX,
            **options,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            done = await asyncio.wait_for(asyncio.gather(*sent), DEADLINE_S)
        finally:
            await producer.stop()
        # acks=0 has no answer.
        return [(-1, -1) if place is None else (place.partition, place.offset) for place in done]

    def consume(
        self,
        bootstrap: str,
        topic: str,
        count: int,
        start: Mapping[int, int] = FROM_THE_BEGINNING,
    ) -> list[Record]:
        return run(self._consume(bootstrap, topic, count, start))

    async def _consume(
        self, bootstrap: str, topic: str, count: int, start: Mapping[int, int]
    ) -> list[Record]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False
        )
        await consumer.start()
        records: list[Record] = []
        try:
            consumer.assign([aiokafka.TopicPartition(topic, p) for p in start])
            for partition, offset in start.items():
                consumer.seek(aiokafka.TopicPartition(topic, partition), offset)
            async with asyncio.timeout(DEADLINE_S):
                while len(records) < count:
                    batch = await consumer.getmany(
                        timeout_ms=1000, max_records=count - len(records)
                    )
                    for found in batch.values():
                        records += [_plain_record(message) for message in found]
        except TimeoutError:
            raise _incomplete(self, len(records), count) from None
        finally:
            await consumer.stop()
        return records

    def offsets_for_times(
        self, bootstrap: str, topic: str, times_ms: Sequence[int]
    ) -> list[int | None]:
        return run(self._offsets_for_times(bootstrap, topic, times_ms))

    async def _offsets_for_times(
        self, bootstrap: str, topic: str, times_ms: Sequence[int]
    ) -> list[int | None]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
        partition = aiokafka.TopicPartition(topic, 0)
        await consumer.start()
        try:
            found = [
                (await consumer.offsets_for_times({partition: ms}))[partition] for ms in times_ms
            ]
        finally:
            await consumer.stop()
        return [None if place is None else place.offset for place in found]


def _plain_record(message: Any) -> Record:
    """kafka-python's record and aiokafka's have the same fields."""
    return Record(
        message.topic,
        message.partition,
        message.offset,
        message.timestamp,
        message.key,
        message.value,
        tuple(message.headers),
    )


CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka())
