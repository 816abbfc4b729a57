"""Members of consumer groups, of every stock client: each reads, processes and commits on a thread.

A member commits after each batch that it processed. A commit that is refused because the group has
rebalanced is ignored: another member reads those records again.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, final

import aiokafka
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError as AioKafkaError

from tests.e2e.group_watch import DEADLINE_S, GroupWatch, Log
from tests.support.clients import kafka

__all__ = ["KINDS", "AioKafkaMember", "ConfluentMember", "KafkaPythonMember", "Kind", "Member"]

POLL_S = 0.05
METADATA_AGE_MS = 500

Read = tuple[Log, int, bytes]


class Member(ABC):
    """One consumer in a group. `close` leaves the group; use it as a context manager."""

    def __init__(
        self,
        name: str,
        watch: GroupWatch,
        bootstrap: str,
        group: str,
        topics: Iterable[str],
        **options: Any,
    ) -> None:
        self.name = name
        self.watch = watch
        self.topics = list(topics)
        self._bootstrap = bootstrap
        self._group = group
        self._options = options
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Start to leave the group."""
        self._stopping.set()

    def close(self) -> None:
        self.stop()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def _run(self) -> None:
        try:
            self._open()
            try:
                while not self._stopping.is_set():
                    self._turn()
            finally:
                self._leave()
        except Exception as error:  # noqa: BLE001 - the test that waits on `watch` reports it
            self.watch.failed(self.name, error)
        finally:
            self.watch.lost(self.name)

    def _turn(self) -> None:
        batch = self._poll()
        for log, offset, value in batch:
            self.watch.processed(self.name, log, offset, value)
        positions = {log: offset + 1 for log, offset, _ in batch}
        if positions and self._commit(positions):
            for log, offset in positions.items():
                self.watch.answered_commit(log, offset)

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _poll(self) -> list[Read]: ...

    @abstractmethod
    def _commit(self, positions: dict[Log, int]) -> bool:
        """Whether the commit was accepted; False if the group has rebalanced."""

    @abstractmethod
    def _leave(self) -> None: ...


@final
class ConfluentMember(Member):
    """librdkafka, in both protocols; options are its own, with underscores for dots."""

    def _open(self) -> None:
        given = {name.replace("_", "."): value for name, value in self._options.items()}
        config = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self._group,
            "client.id": self.name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
            "fetch.wait.max.ms": 50,
            **given,
        }
        if config.get("group.protocol") != "consumer":
            config.setdefault("heartbeat.interval.ms", 100)
        self._consumer = confluent_kafka.Consumer(config)
        self._consumer.subscribe(
            self.topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def _assigned(self, _: Any, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.watch.assigned(self.name, [(p.topic, p.partition) for p in partitions])

    def _revoked(self, _: Any, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.watch.revoked(self.name, [(p.topic, p.partition) for p in partitions])

    def _poll(self) -> list[Read]:
        read: list[Read] = []
        for message in self._consumer.consume(50, POLL_S):
            if message.error() is not None:
                if message.error().code() == confluent_kafka.KafkaError._FATAL:
                    raise confluent_kafka.KafkaException(message.error())
                continue  # it retries by itself
            read.append(((message.topic(), message.partition()), message.offset(), message.value()))
        return read

    def _commit(self, positions: dict[Log, int]) -> bool:
        wanted = [confluent_kafka.TopicPartition(*log, at) for log, at in positions.items()]
        try:
            answers = self._consumer.commit(offsets=wanted, asynchronous=False)
        except confluent_kafka.KafkaException:
            return False
        return all(answer.error is None for answer in answers)

    def _leave(self) -> None:
        self._consumer.close()


@final
class _KafkaPythonListener(kafka.ConsumerRebalanceListener):
    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.watch.assigned(self._member.name, [tuple(p) for p in assigned])

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.watch.revoked(self._member.name, [tuple(p) for p in revoked])


@final
class KafkaPythonMember(Member):
    """Its polls wait longer: it misses an assignment that arrives between two of them."""

    POLL_MS = 2_000

    def _open(self) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=self._group,
            client_id=self.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            metadata_max_age_ms=METADATA_AGE_MS,
            heartbeat_interval_ms=100,
            fetch_max_wait_ms=50,
            **self._options,
        )
        self._consumer.subscribe(self.topics, listener=_KafkaPythonListener(self))

    def _poll(self) -> list[Read]:
        polled = self._consumer.poll(self.POLL_MS, max_records=50)
        return [
            ((log.topic, log.partition), message.offset, message.value)
            for log, messages in polled.items()
            for message in messages
        ]

    def _commit(self, positions: dict[Log, int]) -> bool:
        wanted = {
            kafka.TopicPartition(*log): kafka.OffsetAndMetadata(at, "", -1)
            for log, at in positions.items()
        }
        try:
            self._consumer.commit(wanted)
        except kafka.errors.KafkaError:
            return False
        return True

    def _leave(self) -> None:
        self._consumer.close(autocommit=False)


@final
class _AioKafkaListener(aiokafka.ConsumerRebalanceListener):
    def __init__(self, member: Member) -> None:
        self._member = member

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.watch.assigned(self._member.name, [tuple(p) for p in assigned])

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.watch.revoked(self._member.name, [tuple(p) for p in revoked])


@final
class AioKafkaMember(Member):
    """Its heartbeats run while we wait for records, which is nearly always."""

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=self._group,
            client_id=self.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            metadata_max_age_ms=METADATA_AGE_MS,
            heartbeat_interval_ms=100,
            fetch_max_wait_ms=50,
            **{"partition_assignment_strategy": (RangePartitionAssignor,), **self._options},
        )
        self._consumer.subscribe(self.topics, listener=_AioKafkaListener(self))
        await self._consumer.start()

    def _poll(self) -> list[Read]:
        polled = self._loop.run_until_complete(
            self._consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=50)
        )
        return [
            ((log.topic, log.partition), message.offset, message.value)
            for log, messages in polled.items()
            for message in messages
        ]

    def _commit(self, positions: dict[Log, int]) -> bool:
        wanted = {aiokafka.TopicPartition(*log): at for log, at in positions.items()}
        try:
            self._loop.run_until_complete(self._consumer.commit(wanted))
        except AioKafkaError:
            return False
        return True

    def _leave(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


@final
class Kind:
    """A client and a group protocol."""

    def __init__(self, name: str, member: Callable[..., Member], **options: Any) -> None:
        self.name = name
        self._member = member
        self._options = options

    def join(self, name: str, watch: GroupWatch, *where: Any, **options: Any) -> Member:
        return self._member(name, watch, *where, **{**self._options, **options})


KINDS = {
    kind.name: kind
    for kind in (
        Kind("librdkafka-classic", ConfluentMember),
        Kind(
            "librdkafka-cooperative",
            ConfluentMember,
            partition_assignment_strategy="cooperative-sticky",
        ),
        Kind("librdkafka-consumer", ConfluentMember, group_protocol="consumer"),
        Kind("kafka-python", KafkaPythonMember),
        Kind("aiokafka", AioKafkaMember),
    )
}
