"""Idempotent producers that send all the time and remember what was acknowledged."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Any, final

import confluent_kafka

from tests.support.clients import DEADLINE_S, Confluent

__all__ = ["NOT_YET", "Acknowledged", "Load", "Log", "Tail", "read_logs"]

UNACKNOWLEDGED_MAX = 100
"""Per producer: enough for several batches in flight when the broker dies; bounds the test."""

RECORDS_PER_PAUSE = 100
"""On average, drawn for each record: no number of records ends where a pause begins."""

Log = tuple[str, int]
"""Topic and partition."""


@final
@dataclass(frozen=True, slots=True)
class Acknowledged:
    log: Log
    offset: int
    value: bytes


@final
class Load:
    """Call `start`, `wait_acknowledged` any number of times, `finish`; then read the records.

    A value is the producer's number and its own counter: `1:42`.
    """

    def __init__(
        self,
        bootstrap: str,
        logs: list[Log],
        *,
        seed: int,
        producers: int = 2,
        pause_s: float = 0.0,
        **options: Any,
    ) -> None:
        """With pauses, a load that lasts as long as something else does not take all cores."""
        self.sent: dict[tuple[int, Log], list[bytes]] = defaultdict(list)
        self.acknowledged: list[Acknowledged] = []
        self.implied: list[bytes] = []
        """Acknowledged without an offset: their request got no answer, but a later batch was taken,
        which tells librdkafka that they were appended."""
        self.failures: list[str] = []
        self._logs = logs
        self._pause_s = pause_s
        self._options = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "batch.num.messages": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            **options,
        }
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, args=(number, Random(seed + number)), daemon=True)
            for number in range(producers)
        ]

    def start(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def wait_acknowledged(self, more: int) -> None:
        """Wait until `more` further records are acknowledged."""
        target = len(self.acknowledged) + more
        with self._progress:
            reached = self._progress.wait_for(
                lambda: len(self.acknowledged) >= target or self.failures, DEADLINE_S
            )
        assert reached, f"{len(self.acknowledged)} of {target} acknowledged"

    def finish(self) -> None:
        """Stop sending and wait for the outcome of every record."""
        self._stopping.set()
        deadline = monotonic() + 2 * DEADLINE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
            assert not thread.is_alive(), "records are still not acknowledged"

    def abandon(self) -> None:
        """Stop sending; nobody asks what became of it."""
        self._stopping.set()

    def _run(self, number: int, rng: Random) -> None:
        producer = confluent_kafka.Producer(self._options)
        count = 0
        while not self._stopping.is_set():
            if len(producer) >= UNACKNOWLEDGED_MAX:
                producer.poll(0.01)
                continue
            log, value = rng.choice(self._logs), b"%d:%d" % (number, count)
            self.sent[number, log].append(value)
            producer.produce(log[0], value, partition=log[1], on_delivery=self._settle)
            producer.poll(0)
            count += 1
            if self._pause_s and rng.randrange(RECORDS_PER_PAUSE) == 0:
                self._stopping.wait(self._pause_s)
        producer.flush(2 * DEADLINE_S)

    def _settle(self, error: confluent_kafka.KafkaError | None, sent: Any) -> None:
        with self._progress:
            if error is not None:
                self.failures.append(f"{sent.topic()}-{sent.partition()}: {error}")
            elif sent.offset() is None:
                self.implied.append(sent.value())
            else:
                log = (sent.topic(), sent.partition())
                self.acknowledged.append(Acknowledged(log, sent.offset(), sent.value()))
            self._progress.notify_all()


@final
class Tail:
    """A consumer that keeps reading while the broker is killed and restarted."""

    def __init__(self, bootstrap: str, logs: list[Log], **options: Any) -> None:
        self.read: dict[Log, list[tuple[int, bytes]]] = {log: [] for log in logs}
        self.failures: list[str] = []
        self._count = 0
        self._wanted: int | None = None
        self._consumer = Confluent().consumer(bootstrap, reconnect_backoff_max_ms=200, **options)
        self._consumer.assign([confluent_kafka.TopicPartition(*log, 0) for log in logs])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self, count: int) -> None:
        """Wait until it has read `count` records in total."""
        self._wanted = count
        self._thread.join(DEADLINE_S)
        alive = self._thread.is_alive()
        self._consumer.close()
        assert not alive, f"{self._count} of {count} records read"

    def _run(self) -> None:
        while self._wanted is None or self._count < self._wanted:
            try:
                messages = self._consumer.consume(1000, 0.05)
            except RuntimeError:  # closed: reading took too long
                return
            for message in messages:
                if message.error() is not None:
                    self.failures.append(str(message.error()))
                    return
                read = self.read[message.topic(), message.partition()]
                read.append((message.offset(), message.value()))
                self._count += 1


NOT_YET = (
    confluent_kafka.KafkaError._UNKNOWN_PARTITION,  # librdkafka's word for no leader
    confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,  # not any more, or not heard of yet
    confluent_kafka.KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader that waits for others (KIP-207)
)
"""Why the end of a partition cannot be told for a moment after an election."""
LOOK_EVERY_S = 0.05


def _end(bootstrap: str, place: confluent_kafka.TopicPartition) -> int:
    """The high watermark; librdkafka does not repeat its question."""
    deadline = monotonic() + DEADLINE_S
    while True:
        consumer = Confluent().consumer(bootstrap)  # a new one: it keeps that nobody leads
        try:
            return int(consumer.get_watermark_offsets(place, DEADLINE_S)[1])
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() not in NOT_YET or monotonic() > deadline:
                raise
        finally:
            consumer.close()
        threading.Event().wait(LOOK_EVERY_S)


def read_logs(bootstrap: str, logs: list[Log]) -> dict[Log, list[bytes]]:
    """All records of the broker by offset; the logs of these tests begin at 0."""
    asked = [confluent_kafka.TopicPartition(topic, index, 0) for topic, index in logs]
    ends = [_end(bootstrap, one) for one in asked]
    consumer = Confluent().consumer(bootstrap)
    try:
        consumer.assign(asked)
        records = Confluent().read(consumer, sum(ends))
    finally:
        consumer.close()
    read: dict[Log, list[bytes]] = {log: [] for log in logs}
    for record in records:
        values = read[record.topic, record.partition]
        assert record.offset == len(values)
        values.append(record.value or b"")
    return read
