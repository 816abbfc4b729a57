"""A librdkafka producer that writes transactions, and a reader of what is committed.

Both live in threads of their own while their brokers are killed, and tell a `TransactionHistory`
what they saw.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from random import Random
from time import monotonic
from uuid import uuid4

import confluent_kafka
from confluent_kafka import KafkaException

from tests.support.transaction_history import Outcome, SentTransaction, TransactionHistory
from tidemill.core.ids import TopicPartition
from tidemill.wire.records import Record

__all__ = ["CommittedFollower", "TransactionalClient"]

STEP_S = 30.0
POLL_S = 0.2
RECORDS_MAX = 6
ABORTS_ONE_IN = 4
QUIET = logging.getLogger("tests.campaign.librdkafka")
"""Clients say a lot while their brokers are dead; what matters is in the outcomes."""
QUIET.disabled = True


class TransactionalClient:
    """One transactional id; `pause` lets it finish its transaction and wait."""

    def __init__(
        self,
        number: int,
        bootstrap: Callable[[], str],
        history: TransactionHistory,
        partitions: Sequence[TopicPartition],
        rng: Random,
    ) -> None:
        self._number = number
        self._bootstrap = bootstrap
        self._history = history
        self._partitions = partitions
        self._rng = rng
        self._id = f"kills-{number}-{uuid4().hex[:8]}"
        self._producer: confluent_kafka.Producer | None = None
        self._wanted = threading.Event()
        self._over = threading.Event()
        self.idle = threading.Event()
        self.ending = threading.Event()
        """Set when it is about to end a transaction."""
        self.last_commit = 0.0
        """When a commit last succeeded."""
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self._id, daemon=True)

    def start(self) -> None:
        self._wanted.set()
        self._thread.start()

    def pause(self) -> None:
        self._wanted.clear()

    def go_on(self) -> None:
        self.idle.clear()
        self._wanted.set()

    def stop(self) -> None:
        self._over.set()
        self._wanted.set()
        self._thread.join(2 * STEP_S)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                if self._wanted.is_set():
                    self._one()
                else:
                    self.idle.set()
                    self._wanted.wait()
        except BaseException as failure:  # noqa: BLE001 - reported by the command
            self.failure = failure
        self.idle.set()

    def _opened(self) -> confluent_kafka.Producer | None:
        """The producer at work; None if no broker took it yet."""
        if self._producer is None:
            producer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": self._bootstrap(),
                    "transactional.id": self._id,
                    "linger.ms": 0,
                    "retry.backoff.ms": 20,
                    "reconnect.backoff.max.ms": 200,
                    "transaction.timeout.ms": 30_000,
                },
                logger=QUIET,
            )
            try:
                producer.init_transactions(STEP_S)
            except KafkaException:
                return None
            self._producer = producer
        return self._producer

    def _one(self) -> None:
        producer = self._opened()
        if producer is None:
            return
        sent = self._history.begin(self._number)
        is_commit = self._rng.randrange(ABORTS_ONE_IN) > 0
        try:
            producer.begin_transaction()
            for _ in range(1 + self._rng.randrange(RECORDS_MAX)):
                self._send(producer, sent)
            if not is_commit:
                producer.flush(STEP_S)
            self.ending.set()
            if is_commit:
                self._commit(producer, sent)
            else:
                producer.abort_transaction(STEP_S)
        except KafkaException as error:
            self._recover(producer, sent, error)

    def _send(self, producer: confluent_kafka.Producer, sent: SentTransaction) -> None:
        partition = self._rng.choice(self._partitions)
        value = sent.value(partition)

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is None:
                sent.acked[value] = message.offset()

        producer.produce(partition.topic, value, partition=partition.partition, callback=delivered)
        producer.poll(0)

    def _commit(self, producer: confluent_kafka.Producer, sent: SentTransaction) -> None:
        """A commit that took too long may be repeated: the client asks for the same again."""
        sent.outcome = Outcome.UNKNOWN
        deadline = monotonic() + 2 * STEP_S
        while True:
            try:
                producer.commit_transaction(STEP_S)
            except KafkaException as error:
                if not error.args[0].retriable() or monotonic() > deadline:
                    raise
            else:
                sent.outcome = Outcome.COMMITTED
                self.last_commit = monotonic()
                return

    def _recover(
        self, producer: confluent_kafka.Producer, sent: SentTransaction, error: KafkaException
    ) -> None:
        """Abort if the client says so: one that succeeds says that nothing was committed."""
        if error.args[0].txn_requires_abort():
            try:
                producer.abort_transaction(STEP_S)
            except KafkaException:
                self._producer = None
            else:
                sent.outcome = Outcome.ABORTED
        else:
            self._producer = None


class CommittedFollower:
    """Reads all partitions from their start, through every kill."""

    def __init__(
        self,
        bootstrap: str,
        history: TransactionHistory,
        partitions: Sequence[TopicPartition],
    ) -> None:
        self._history = history
        self._over = threading.Event()
        self.reached: dict[TopicPartition, int] = dict.fromkeys(partitions, 0)
        """Ends of partitions that it came to."""
        self.records = 0
        self.failure: BaseException | None = None
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": uuid4().hex,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 200,
            },
            logger=QUIET,
        )
        self._consumer.assign([confluent_kafka.TopicPartition(*one, 0) for one in partitions])
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(STEP_S)
        self._consumer.close()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                message = self._consumer.poll(POLL_S)
                if message is not None:
                    self._take(message)
        except BaseException as failure:  # noqa: BLE001 - reported by the command
            self.failure = failure

    def _take(self, message: confluent_kafka.Message) -> None:
        if message.topic() is None or message.partition() < 0:
            return  # a lost connection
        partition = TopicPartition(message.topic(), message.partition())
        error = message.error()
        if error is None:
            record = Record(message.value(), offset=message.offset())
            self._history.read(partition, [record])
            self.records += 1
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            self.reached[partition] = max(self.reached[partition], message.offset())
        elif error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
            raise AssertionError(f"I20: {partition}: {error}")
