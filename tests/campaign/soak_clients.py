"""The clients of a soak: two writers at a steady rate, and readers of groups that commit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final, final

import confluent_kafka
from confluent_kafka import KafkaException

from tests.campaign.soak_ledger import Log, SoakLedger
from tests.campaign.transactional_client import QUIET

__all__ = ["GroupReader", "SteadyProducer", "SteadyTransactions"]

STEP_S: Final = 30.0
BURST_S: Final = 0.25
POLL_S: Final = 0.2
COMMIT_EVERY_S: Final = 2.0
ABORTS_ONE_IN: Final = 4
PADDING: Final = b"." * 200


class _Client:
    """A thread that repeats a step until it is stopped; a failure of it breaks a promise."""

    def __init__(self, name: str, ledger: SoakLedger) -> None:
        self.name = name
        self._ledger = ledger
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(3 * STEP_S)
        if self._thread.is_alive():
            self._ledger.fail(f"{self.name} does not end")

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._step()
            self._finish()
        except (AssertionError, KafkaException, RuntimeError, ValueError) as failure:
            self._ledger.fail(f"{self.name}: {type(failure).__name__}: {failure}")

    def _step(self) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        """The last thing that the thread does."""


@final
class SteadyProducer(_Client):
    """An idempotent producer with acks=all; so many records a second, to all partitions in turn."""

    def __init__(
        self, bootstrap: str, logs: Sequence[Log], ledger: SoakLedger, *, per_second: float
    ) -> None:
        super().__init__("producer", ledger)
        self._logs = logs
        self._per_second = per_second
        self._started = 0.0
        self._count = 0
        self._latencies: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
            },
            logger=QUIET,
        )

    def take_latencies(self) -> Counter[int]:
        """Tenths of milliseconds from a send to its acknowledgement, since the last call."""
        with self._lock:
            taken, self._latencies = self._latencies, Counter()
            return taken

    def _step(self) -> None:
        self._started = self._started or monotonic()
        due = int((monotonic() - self._started) * self._per_second)
        # After a pause of the machine it goes on from now: a burst would be a load of its own.
        burst = min(due - self._count, int(2 * BURST_S * self._per_second) + 1)
        for turn in range(burst):
            self._send(self._logs[(self._count + turn) % len(self._logs)])
        self._count = due
        next_at = monotonic() + BURST_S
        while (left_s := next_at - monotonic()) > 0:
            self._producer.poll(left_s)  # returns after every answer

    def _send(self, log: Log) -> None:
        number = self._ledger.send(log)
        sent_at = monotonic()

        def settle(error: Any, message: Any) -> None:
            if error is not None:
                self._ledger.fail(f"{log} {number} was not taken: {error}")
                return
            self._ledger.acknowledge(log, number, message.offset())
            with self._lock:
                self._latencies[int((monotonic() - sent_at) * 10_000)] += 1

        value = b"%d %s" % (number, PADDING)
        self._producer.produce(log[0], value, partition=log[1], on_delivery=settle)

    def _finish(self) -> None:
        left = self._producer.flush(2 * STEP_S)
        assert not left, f"{left} records are not acknowledged"


@final
class SteadyTransactions(_Client):
    """One transaction at a time, a record in each partition; some are aborted."""

    def __init__(
        self, bootstrap: str, logs: Sequence[Log], ledger: SoakLedger, *, per_second: float
    ) -> None:
        super().__init__("transactions", ledger)
        self._logs = logs
        self._pause_s = 1 / per_second
        self.committed = 0
        self.aborted = 0
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": "soak", "linger.ms": 0},
            logger=QUIET,
        )
        self._is_open = False

    def _step(self) -> None:
        if not self._is_open:
            self._producer.init_transactions(STEP_S)
            self._is_open = True
        self._producer.begin_transaction()
        offsets: dict[tuple[Log, int], int] = {}
        sent = [(log, self._ledger.send(log)) for log in self._logs]
        for (topic, index), number in sent:

            def settle(error: Any, message: Any, key: Any = ((topic, index), number)) -> None:
                if error is None:
                    offsets[key] = message.offset()

            self._producer.produce(topic, b"%d" % number, partition=index, on_delivery=settle)
        self._producer.flush(STEP_S)
        assert len(offsets) == len(sent), f"{len(sent) - len(offsets)} records were not taken"
        if (self.committed + self.aborted) % ABORTS_ONE_IN == ABORTS_ONE_IN - 1:
            self._producer.abort_transaction(STEP_S)
            self.aborted += 1
            for log, number in sent:
                self._ledger.void(log, number)
        else:
            self._producer.commit_transaction(STEP_S)
            self.committed += 1
            for log, number in sent:
                self._ledger.acknowledge(log, number, offsets[log, number])
        self._over.wait(self._pause_s)


@final
class GroupReader(_Client):
    """The one member of a group: it reads what is committed, and commits where it is."""

    def __init__(
        self, bootstrap: str, topics: Sequence[str], ledger: SoakLedger, *, protocol: str
    ) -> None:
        """`protocol` is `classic` or `consumer`, and the name of the group."""
        super().__init__(protocol, ledger)
        self._topics = list(topics)
        self.assignments = 0
        """How often it was given partitions: once, unless the group was disturbed."""
        self._committed: dict[Log, int] = {}
        self._commits_at = 0.0
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": protocol,
                "group.protocol": protocol,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 500,
                "fetch.min.bytes": 4096,
            },
            logger=QUIET,
        )
        self._is_subscribed = False

    def _step(self) -> None:
        if not self._is_subscribed:
            self._consumer.subscribe(self._topics, on_assign=self._assigned)
            self._is_subscribed = True
        for message in self._consumer.consume(1000, POLL_S):
            error = message.error()
            if error is not None:
                assert error.retriable(), str(error)
                continue
            number = int(message.value().split(b" ", 1)[0])
            log = message.topic(), message.partition()
            self._ledger.see(log, number, message.offset(), self.name)
        if monotonic() > self._commits_at:
            self._commit()
            self._commits_at = monotonic() + COMMIT_EVERY_S

    def _finish(self) -> None:
        self._commit()
        self._consumer.close()

    def _assigned(self, _consumer: Any, given: list[confluent_kafka.TopicPartition]) -> None:
        self.assignments += bool(given)

    def _commit(self) -> None:
        """I28: what was committed last is there, and the next commit is not before it."""
        owned = self._consumer.assignment()
        if not owned:
            return
        for one in self._consumer.committed(owned, STEP_S):
            before = self._committed.get((one.topic, one.partition), one.offset)
            if one.offset != before:
                what = f"{one.topic}-{one.partition} was committed at {before}, is at {one.offset}"
                self._ledger.fail(f"I28: group {self.name}: {what}")
        places = [one for one in self._consumer.position(owned) if one.offset >= 0]
        if places:
            done = self._consumer.commit(offsets=places, asynchronous=False)
            self._committed |= {(one.topic, one.partition): one.offset for one in done}
