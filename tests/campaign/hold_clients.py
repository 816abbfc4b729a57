"""Stock clients of held records: one that sends many, and one that notes what comes and when."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from time import monotonic
from typing import NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient

from tests.support.clients import DEADLINE_S

__all__ = ["DeliveryWatch", "HeldSend", "leader_of", "send_held"]

CONSUMED_AT_ONCE = 10_000
POLL_S = 0.2
TICKET = "tidemill.ticket"


class HeldSend(NamedTuple):
    """A record to be held: its value, and the header that asks for it."""

    value: bytes
    header: tuple[str, bytes]


def leader_of(bootstrap: str, topic: str) -> int:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=DEADLINE_S)
    return int(found.topics[topic].partitions[0].leader)


def send_held(bootstrap: str, topic: str, sends: Iterable[HeldSend]) -> dict[bytes, int]:
    """Send them all; the ticket of each value that was acknowledged."""
    tickets: dict[bytes, int] = {}
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.num.messages": 5_000,
            "queue.buffering.max.messages": 200_000,
            "message.timeout.ms": 300_000,
        }
    )

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            tickets[message.value()] = message.offset()

    for send in sends:
        while True:
            try:
                producer.produce(
                    topic,
                    send.value,
                    headers=[send.header],
                    partition=0,
                    on_delivery=delivered,
                )
            except BufferError:
                producer.poll(POLL_S)
            else:
                break
        producer.poll(0)
    producer.flush(10 * DEADLINE_S)
    return tickets


class DeliveryWatch:
    """Reads a topic in a thread; of each value how often it came, and first when (monotonic)."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.came: Counter[bytes] = Counter()
        self.first_s: dict[bytes, float] = {}
        self.stamp_ms: dict[bytes, int] = {}
        """The time of its release, on the broker's wall clock."""
        self.failure: Exception | None = None
        self._is_over = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "watch",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                for message in self._consumer.consume(CONSUMED_AT_ONCE, POLL_S):
                    if message.error() is None:
                        self.came[message.value()] += 1
                        self.first_s.setdefault(message.value(), monotonic())
                        self.stamp_ms[message.value()] = message.timestamp()[1]
        except Exception as error:  # noqa: BLE001 - the campaign reports it
            self.failure = error
        finally:
            self._consumer.close()

    def wait_for(self, values: Iterable[bytes], within_s: float) -> bool:
        """Wait until all of them came."""
        left, deadline = set(values), monotonic() + within_s
        while True:
            left -= self.came.keys()
            if not left:
                return True
            if self.failure is not None or monotonic() > deadline:
                return False
            threading.Event().wait(POLL_S)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
