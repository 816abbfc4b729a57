"""Delayed records with stock clients: never early, exactly once, also over kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, time

import confluent_kafka
import pytest

from tests.support.clients import DEADLINE_S, create_topic, end_offset
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

HeaderList = list[tuple[str, bytes]]


def now_ms() -> int:
    return int(time() * 1000)


def delay(ms: int) -> HeaderList:
    return [("tidemill.delay-ms", b"%d" % ms)]


class Sender:
    """A librdkafka producer; `send` returns the offset that was answered."""

    def __init__(self, broker: BrokerProcess, **config: object) -> None:
        settings: dict[str, object] = {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 0,
            "message.timeout.ms": int(DEADLINE_S * 1000),
        }
        self.producer = confluent_kafka.Producer(settings | config)

    def send(self, topic: str, value: bytes, headers: HeaderList | None = None) -> int:
        return self.send_all(topic, [(value, headers or [])])[0]

    def send_all(self, topic: str, records: list[tuple[bytes, HeaderList]]) -> list[int]:
        """Raises KafkaException with the first error."""
        answers: dict[int, tuple[confluent_kafka.KafkaError | None, int]] = {}

        def note(place: int) -> Callable[..., None]:
            def answered(error: confluent_kafka.KafkaError | None, message: object) -> None:
                offset = message.offset()  # type: ignore[attr-defined]
                answers[place] = error, -1 if offset is None else offset

            return answered

        for place, (value, headers) in enumerate(records):
            self.producer.produce(
                topic, value, partition=0, headers=headers, on_delivery=note(place)
            )
        assert self.producer.flush(DEADLINE_S) == 0
        for place in range(len(records)):
            error = answers[place][0]
            if error is not None:
                raise confluent_kafka.KafkaException(error)
        return [answers[place][1] for place in range(len(records))]


@contextmanager
def reading(
    broker: BrokerProcess, topic: str, **config: object
) -> Iterator[confluent_kafka.Consumer]:
    settings: dict[str, object] = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": f"of {topic}",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings | config)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    try:
        yield consumer
    finally:
        consumer.close()


def read(
    consumer: confluent_kafka.Consumer, count: int
) -> list[tuple[confluent_kafka.Message, int]]:
    """The next `count` records, each with the time at which it came."""
    found: list[tuple[confluent_kafka.Message, int]] = []
    deadline = monotonic() + DEADLINE_S
    while len(found) < count:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append((message, now_ms()))
        assert monotonic() < deadline, [one.value() for one, _ in found]
    return found


def read_to_end(broker: BrokerProcess, topic: str, **config: object) -> list[bytes]:
    """Everything that a consumer is shown now; its position reaches the end."""
    values: list[bytes] = []
    end = end_offset(broker.bootstrap, topic)
    deadline = monotonic() + DEADLINE_S
    with reading(broker, topic, **config) as consumer:
        while monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is None:
                values.append(message.value())
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                assert message.offset() == end
                return values
    raise AssertionError(f"no end after {values}")


def headers_of(message: confluent_kafka.Message) -> dict[str, bytes]:
    return dict(message.headers() or [])


def test_a_delayed_record_comes_once_and_not_before_it_is_due(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    sender = Sender(shared_broker)
    sent_ms = now_ms()
    ticket = sender.send(topic, b"later", [*delay(1500), ("mine", b"kept")])
    assert sender.send(topic, b"now") == ticket + 1
    assert read_to_end(shared_broker, topic) == [b"now"]
    with reading(shared_broker, topic) as consumer:
        (first, _), (second, came_ms) = read(consumer, 2)
    assert (first.value(), second.value()) == (b"now", b"later")
    assert came_ms - sent_ms >= 1500
    headers = headers_of(second)
    assert headers["mine"] == b"kept"
    assert headers["tidemill.ticket"] == b"%d" % ticket
    assert sent_ms + 1500 <= int(headers["tidemill.due"]) <= came_ms
    assert sent_ms <= int(headers["tidemill.sent-at"]) <= sent_ms + 1000
    assert "tidemill.delay-ms" not in headers
    assert second.timestamp()[1] >= int(headers["tidemill.due"])
    assert read_to_end(shared_broker, topic) == [b"now", b"later"]


def test_a_delay_outlives_kills_and_is_delivered_once(new_broker, topic):
    broker = new_broker()
    create_topic(broker.bootstrap, topic)
    due_ms = now_ms() + 6_000
    at = [("tidemill.deliver-at", b"%d" % due_ms)]
    sender = Sender(broker)
    sender.send_all(topic, [(b"delayed %d" % n, at if n % 2 else []) for n in range(20)])
    sender.send(topic, b"soon", delay(1))
    plain = [b"delayed %d" % n for n in range(0, 20, 2)]
    late = [b"delayed %d" % n for n in range(1, 20, 2)]
    broker.kill()
    broker.start()
    with reading(broker, topic) as consumer:
        assert [one.value() for one, _ in read(consumer, 11)] == [*plain, b"soon"]
    broker.kill()
    broker.start()
    with reading(broker, topic) as consumer:
        found = read(consumer, 21)
    assert [one.value() for one, _ in found] == [*plain, b"soon", *late]
    assert all(came_ms >= due_ms for _, came_ms in found[11:])
    broker.kill()
    broker.start()
    assert read_to_end(broker, topic) == [*plain, b"soon", *late]
