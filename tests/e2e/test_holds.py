"""Delayed records with stock clients: never early, exactly once, also over kills."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.support.clients import DEADLINE_S
from tests.support.topics import create_topic, end_offset
from tests.support.waiting import wait_for_brokers
from tidemill.testing.broker_process import BrokerProcess
from tidemill.testing.cluster_process import ClusterProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

Brokers = BrokerProcess | ClusterProcess
HeaderList = list[tuple[str, bytes]]


def now_ms() -> int:
    return int(time() * 1000)


def delay(ms: int) -> HeaderList:
    return [("tidemill.delay-ms", b"%d" % ms)]


class Sender:
    """A librdkafka producer; `send` returns the offset that was answered."""

    def __init__(self, broker: Brokers, **config: object) -> None:
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
def reading(broker: Brokers, topic: str, **config: object) -> Iterator[confluent_kafka.Consumer]:
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


def read_to_end(broker: Brokers, topic: str, **config: object) -> list[bytes]:
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


def test_a_long_batch_is_taken_in_and_released_in_order(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    sender = Sender(shared_broker, **{"linger.ms": 200, "compression.type": "zstd"})
    due_ms = now_ms() + 2_000
    at = [("tidemill.deliver-at", b"%d" % due_ms)]
    values = [b"%05d" % n * 20 for n in range(3_000)]
    sender.send_all(topic, [(value, at) for value in values])
    with reading(shared_broker, topic) as consumer:
        found = read(consumer, len(values))
    assert [one.value() for one, _ in found] == values
    assert all(came_ms >= due_ms for _, came_ms in found)
    assert read_to_end(shared_broker, topic) == values


@pytest.mark.parametrize("options", [{}, {"compression.type": "lz4", "enable.idempotence": True}])
def test_a_topic_for_retries_holds_every_record_that_names_no_time(shared_broker, topic, options):
    create_topic(shared_broker.bootstrap, topic, tidemill_delay_default_ms="2000")
    sender = Sender(shared_broker, **{"linger.ms": 200, **options})
    sent_ms = now_ms()
    values = [b"%03d" % n * 20 for n in range(100)]
    sender.send_all(topic, [(value, []) for value in values])
    sender.send(topic, b"sooner", delay(0))
    with reading(shared_broker, topic) as consumer:
        found = read(consumer, len(values) + 1)
    assert [one.value() for one, _ in found] == [b"sooner", *values]
    assert all(came_ms - sent_ms >= 2_000 for _, came_ms in found[1:])
    assert read_to_end(shared_broker, topic) == [b"sooner", *values]


def test_a_cancelled_record_never_comes_and_a_moved_one_at_its_new_time(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    sender = Sender(shared_broker)
    name = ("tidemill.message-id", b"mine")
    ticket = sender.send(topic, b"cancelled", delay(1_500))
    sender.send(topic, b"moved", [*delay(3_600_000), name])
    sender.send(topic, b"", [("tidemill.command", b"cancel"), ("tidemill.target", b"%d" % ticket)])
    moved_ms = now_ms()
    sender.send(
        topic, b"", [("tidemill.command", b"move"), ("tidemill.target", b"mine"), *delay(2_000)]
    )
    with reading(shared_broker, topic) as consumer:
        ((message, came_ms),) = read(consumer, 1)
    assert message.value() == b"moved"
    assert came_ms - moved_ms >= 2_000
    assert read_to_end(shared_broker, topic) == [b"moved"]
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        sender.send(topic, b"", [("tidemill.command", b"cancel"), ("tidemill.target", b"mine")])
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_RECORD


@pytest.mark.parametrize(
    "headers",
    [
        [("tidemill.delay-ms", b"soon")],
        [("tidemill.delay-ms", b"1"), ("tidemill.deliver-at", b"1")],
        [("tidemill.half", b"g")],
        [("tidemill.command", b"cancel"), ("tidemill.target", b"nobody")],
    ],
)
def test_what_cannot_be_done_is_refused_and_never_ignored(shared_broker, topic, headers):
    create_topic(shared_broker.bootstrap, topic)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        Sender(shared_broker).send(topic, b"x", headers)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_RECORD
    assert end_offset(shared_broker.bootstrap, topic) == 0


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_decides_what_is_held_in_it(shared_broker, topic, is_commit):
    create_topic(shared_broker.bootstrap, topic)
    sender = Sender(shared_broker, **{"transactional.id": topic, "linger.ms": 50})
    producer = sender.producer
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    sender.send_all(topic, [(b"now", []), (b"later", delay(1)), (b"held", delay(600_000))])
    if is_commit:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.abort_transaction(DEADLINE_S)
    sender = Sender(shared_broker)
    sender.send(topic, b"plain")
    sender.send(topic, b"last", delay(500))
    expected = [b"now", b"plain", b"later", b"last"] if is_commit else [b"plain", b"last"]
    with reading(shared_broker, topic) as consumer:
        found = [one.value() for one, _ in read(consumer, len(expected))]
    assert sorted(found) == sorted(expected)
    assert sorted(read_to_end(shared_broker, topic)) == sorted(expected)


def test_searches_by_time_find_what_consumers_see(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    sender = Sender(shared_broker, **{"linger.ms": 100})
    start_ms = now_ms() - 100_000
    done: list[object] = []
    for n in range(6):
        sender.producer.produce(
            topic,
            b"%d" % n,
            partition=0,
            timestamp=start_ms + n * 1_000,
            headers=delay(600_000) if n in (2, 5) else [],
            on_delivery=lambda error, _: done.append(error),
        )
    sender.producer.flush(DEADLINE_S)
    assert done == [None] * 6
    with reading(shared_broker, topic) as consumer:

        def offset_at(time_ms: int) -> int:
            asked = confluent_kafka.TopicPartition(topic, 0, time_ms)
            return int(consumer.offsets_for_times([asked], DEADLINE_S)[0].offset)

        assert [offset_at(start_ms + n * 1_000) for n in range(5)] == [0, 1, 3, 3, 4]
        assert offset_at(start_ms + 5_000) == confluent_kafka.OFFSET_END
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    asked = {confluent_kafka.TopicPartition(topic, 0): OffsetSpec.max_timestamp()}
    (latest,) = admin.list_offsets(asked).values()
    assert latest.result(DEADLINE_S).offset == 4


def test_records_are_not_deleted_while_one_of_them_is_held(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    sender = Sender(shared_broker)
    sender.send(topic, b"plain")
    sender.send(topic, b"held", delay(600_000))
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})

    def delete_before(offset: int) -> int:
        asked = confluent_kafka.TopicPartition(topic, 0, offset)
        (deleted,) = admin.delete_records([asked]).values()
        return int(deleted.result(DEADLINE_S).low_watermark)

    assert delete_before(1) == 1
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        delete_before(2)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.POLICY_VIOLATION


def test_the_leader_dies_and_the_next_one_delivers_once(tmp_path, topic):
    cluster = ClusterProcess(tmp_path / "data", brokers=3).start()
    try:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wait_for_brokers(cluster.bootstrap, {0, 1, 2})
        (made,) = admin.create_topics([NewTopic(topic, 1, 3)]).values()
        made.result(DEADLINE_S)
        sender = Sender(cluster)
        due_ms = now_ms() + 8_000
        at = [("tidemill.deliver-at", b"%d" % due_ms)]
        sender.send_all(topic, [(b"%d" % n, at if n % 2 else []) for n in range(10)])
        sender.send(topic, b"first", delay(1))
        expected = [*(b"%d" % n for n in range(0, 10, 2)), b"first"]
        with reading(cluster, topic) as consumer:
            assert [one.value() for one, _ in read(consumer, 6)] == expected
            leader = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions[0].leader
            cluster.kill_broker(leader)
            found = read(consumer, 5)
            assert [one.value() for one, _ in found] == [b"%d" % n for n in range(1, 10, 2)]
            assert all(came_ms >= due_ms for _, came_ms in found)
        expected += [b"%d" % n for n in range(1, 10, 2)]
        assert read_to_end(cluster, topic) == expected
    finally:
        cluster.stop()
