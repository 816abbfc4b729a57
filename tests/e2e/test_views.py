"""Views with stock clients: none sticks, none sees a filtered record, positions reach the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import aiokafka
import confluent_kafka
import kafka
import pytest
from kafka.errors import RebalanceInProgressError

from tests.support.clients import DEADLINE_S, AioKafka, Confluent, KafkaPython, Message, Sending
from tests.support.coroutines import run
from tests.support.topics import create_topic, wait_until_decided
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

RECORDS = 600
PARTITIONS = 2
SHOWN = {0: "missing = 1", 1: "number = 77", 50: "half = 'yes'", 100: ""}
"""By percent, about: the filter of a view that shows so much."""

Place = tuple[int, int]
Drained = tuple[set[Place], dict[int, int]]
"""Partition and offset of what was shown, and the committed offsets."""


def make_view(broker: BrokerProcess, name: str, of: str, where: str) -> None:
    keys = {"tidemill_view_of": of, "tidemill_view_filter": where}
    create_topic(broker.bootstrap, name, -1, **keys)


def fill(broker: BrokerProcess, topic: str) -> dict[int, set[Place]]:
    """Batches of the codecs that all clients know; by percent the places that a view must show."""
    shown: dict[int, set[Place]] = {percent: set() for percent in SHOWN}
    for round_, codec in enumerate(("none", "gzip", "lz4", "zstd", "none", "none")):
        first = round_ * 100
        numbers = range(first, first + 100)
        # In the last round every batch matches whole.
        messages = [
            Message(
                b"value %d" % n,
                partition=n % PARTITIONS,
                headers=(
                    ("number", b"%d" % n),
                    ("half", b"yes" if (n % 4 < 2 if round_ < 5 else True) else b"no"),
                ),
            )
            for n in numbers
        ]
        places = Confluent().produce(broker.bootstrap, topic, messages, Sending(codec=codec))
        for n, place, message in zip(numbers, places, messages, strict=True):
            shown[100].add(place)
            if message.headers[1][1] == b"yes":
                shown[50].add(place)
            if n == 77:
                shown[1].add(place)
    return shown


def drain_confluent(bootstrap: str, topic: str, **options: str) -> Drained:
    given = {"group_id": f"{topic}-c", "auto_offset_reset": "earliest", **options}
    consumer = Confluent().consumer(bootstrap, **given)
    shown: set[Place] = set()
    deadline = monotonic() + DEADLINE_S
    try:
        consumer.subscribe([topic])
        while monotonic() < deadline:
            for message in consumer.consume(500, 0.1):
                assert message.error() is None, message.error()
                shown.add((message.partition(), message.offset()))
            places = consumer.position(consumer.assignment())
            if len(places) == PARTITIONS and all(
                place.offset == consumer.get_watermark_offsets(place, timeout=DEADLINE_S)[1]
                for place in places
            ):
                break
        consumer.commit(asynchronous=False)
        committed = consumer.committed(consumer.assignment(), timeout=DEADLINE_S)
        return shown, {place.partition: place.offset for place in committed}
    finally:
        consumer.close()


def drain_kafka_python(bootstrap: str, topic: str) -> Drained:
    shown: set[Place] = set()
    deadline = monotonic() + DEADLINE_S
    while monotonic() < deadline:
        committed = _try_drain_kafka_python(bootstrap, topic, shown)
        if committed is not None:
            return shown, committed
    return shown, {}


def _try_drain_kafka_python(
    bootstrap: str, topic: str, shown: set[Place]
) -> dict[int, int | None] | None:
    """What one consumer has committed; None if it got stuck between joining and reading.

    It sometimes does, on plain topics too; a new one goes on.
    """
    consumer = KafkaPython().consumer(
        bootstrap, group_id=f"{topic}-k", auto_offset_reset="earliest"
    )
    deadline = monotonic() + DEADLINE_S / 4
    try:
        # Who joins before it knows the partitions is assigned none (dpkp/kafka-python#2377).
        assert consumer.partitions_for_topic(topic)
        consumer.subscribe([topic])
        while monotonic() < deadline:
            for found in consumer.poll(100).values():
                shown |= {(message.partition, message.offset) for message in found}
            ours = consumer.assignment()
            ends = consumer.end_offsets(list(ours))
            if ours and all(consumer.position(one) == ends[one] for one in ours):
                with suppress(RebalanceInProgressError):  # it joins again when it learns more
                    consumer.commit()
                    return {one.partition: consumer.committed(one) for one in ours}
        return None
    finally:
        consumer.close()


def drain_aiokafka(bootstrap: str, topic: str) -> Drained:
    async def drain() -> Drained:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"{topic}-a",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        shown: set[Place] = set()
        await consumer.start()
        try:
            deadline = monotonic() + DEADLINE_S
            while monotonic() < deadline:
                for found in (await consumer.getmany(timeout_ms=100)).values():
                    shown |= {(message.partition, message.offset) for message in found}
                ours = consumer.assignment()
                ends = await consumer.end_offsets(list(ours))
                if ours and all([await consumer.position(one) == ends[one] for one in ours]):
                    break
            await consumer.commit()
            return shown, {one.partition: await consumer.committed(one) for one in ours}
        finally:
            await consumer.stop()

    return run(asyncio.wait_for(drain(), 2 * DEADLINE_S))


DRAINS: dict[str, Callable[[str, str], Drained]] = {
    Confluent.name: drain_confluent,
    KafkaPython.name: drain_kafka_python,
    AioKafka.name: drain_aiokafka,
}


@pytest.fixture(scope="module")
def filled(group_broker: BrokerProcess) -> tuple[str, dict[int, set[Place]]]:
    """A topic with a view for each share; the places that each must show."""
    create_topic(group_broker.bootstrap, "orders", PARTITIONS)
    for percent, where in SHOWN.items():
        make_view(group_broker, f"orders.{percent}", "orders", where)
    return group_broker.bootstrap, fill(group_broker, "orders")


@pytest.mark.parametrize("percent", SHOWN)
@pytest.mark.parametrize("name", DRAINS)
def test_F106_F107_I40_a_group_drains_a_view_and_its_lag_reaches_0(filled, name, percent):
    bootstrap, shown = filled
    found, committed = DRAINS[name](bootstrap, f"orders.{percent}")
    assert found == shown[percent]
    assert committed == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)


def test_a_group_of_the_consumer_protocol_drains_a_view(filled):
    bootstrap, shown = filled
    found, committed = drain_confluent(
        bootstrap, "orders.50", group_id="of-the-new-protocol", group_protocol="consumer"
    )
    assert found == shown[50]
    assert set(committed.values()) == {RECORDS // PARTITIONS}


def read_values(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    return [one.value for one in Confluent().consume(bootstrap, topic, count)]


def test_F14_exchanges_are_topics_and_bindings_are_views(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    views = {
        "direct": "\"tidemill.routing-key\" = 'eu.orders.new'",
        "fanout": "",
        "topic": "routes('eu.*.new') OR routes('#.cancelled')",
        "headers": "vip = 'yes' AND amount > 100",
    }
    for name, where in views.items():
        make_view(shared_broker, f"{topic}.{name}", topic, where)
    sent = [
        (b"a", "eu.orders.new", b"yes", b"500"),
        (b"b", "eu.offers.new", b"no", b"500"),
        (b"c", "us.orders.cancelled", b"yes", b"20"),
        (b"d", "us.orders.new", b"yes", b"101"),
    ]
    messages = [
        Message(
            value,
            headers=(("tidemill.routing-key", key.encode()), ("vip", vip), ("amount", amount)),
        )
        for value, key, vip, amount in sent
    ]
    Confluent().produce(shared_broker.bootstrap, topic, messages)
    expected = {
        "direct": [b"a"],
        "fanout": [b"a", b"b", b"c", b"d"],
        "topic": [b"a", b"b", b"c"],
        "headers": [b"a", b"d"],
    }
    for name, values in expected.items():
        got = read_values(shared_broker.bootstrap, f"{topic}.{name}", len(values))
        assert got == values


def test_F112_urgent_jobs_are_processed_apart_from_the_others(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic)
    make_view(shared_broker, f"{topic}.urgent", topic, "priority >= 7")
    make_view(shared_broker, f"{topic}.rest", topic, "NOT priority >= 7")
    messages = [Message(b"%d" % n, headers=(("tidemill.priority", b"%d" % n),)) for n in range(10)]
    Confluent().produce(shared_broker.bootstrap, topic, [*messages, Message(b"plain")])
    assert read_values(shared_broker.bootstrap, f"{topic}.urgent", 3) == [b"7", b"8", b"9"]
    rest = read_values(shared_broker.bootstrap, f"{topic}.rest", 8)
    assert rest == [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"plain"]


@pytest.mark.parametrize("how", [AioKafka(), Confluent(), KafkaPython()], ids=lambda c: c.name)
def test_no_client_can_produce_to_a_view(shared_broker, topic, how):
    create_topic(shared_broker.bootstrap, topic)
    make_view(shared_broker, f"{topic}.v", topic, "")
    with pytest.raises(
        (confluent_kafka.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)
    ) as caught:
        how.produce(shared_broker.bootstrap, f"{topic}.v", [Message(b"x", partition=0)])
    assert "uthorization" in repr(caught.value) or "TOPIC_AUTHORIZATION_FAILED" in str(caught.value)


def test_a_view_is_the_same_after_kill_9(new_broker, topic):
    broker = new_broker()
    create_topic(broker.bootstrap, topic)
    make_view(broker, f"{topic}.eu", topic, "region = 'eu'")
    regions = [b"eu", b"us", b"eu", b"us"]
    messages = [Message(one, headers=(("region", one),)) for one in regions]
    Confluent().produce(broker.bootstrap, topic, messages)
    broker.kill()
    broker.start()
    records = Confluent().consume(broker.bootstrap, f"{topic}.eu", 2)
    assert [(one.value, one.offset) for one in records] == [(b"eu", 0), (b"eu", 2)]


def send_transaction(producer: confluent_kafka.Producer, topic: str, values: list[bytes]) -> None:
    """Begin one and send to it; every second record belongs to the view."""
    producer.begin_transaction()
    for number, value in enumerate(values):
        half = b"yes" if number % 2 == 0 else b"no"
        producer.produce(topic, value, headers=[("half", half)])
    producer.flush(DEADLINE_S)


@pytest.mark.parametrize(
    ("isolation", "wanted"),
    [("read_committed", [b"c0", b"c2", b"d0"]), ("read_uncommitted", None)],
)
def test_I21_a_view_shows_no_aborted_record_to_a_committed_reader(
    group_broker, topic, isolation, wanted
):
    create_topic(group_broker.bootstrap, topic)
    make_view(group_broker, f"{topic}.half", topic, "half = 'yes'")
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": group_broker.bootstrap,
            "transactional.id": f"{topic}-writer",
            "linger.ms": 0,
        }
    )
    producer.init_transactions(DEADLINE_S)
    send_transaction(producer, topic, [b"a0", b"a1"])
    producer.abort_transaction(DEADLINE_S)
    send_transaction(producer, topic, [b"c0", b"c1", b"c2", b"c3"])
    producer.commit_transaction(DEADLINE_S)
    send_transaction(producer, topic, [b"b0", b"b1", b"b2"])
    producer.abort_transaction(DEADLINE_S)
    send_transaction(producer, topic, [b"d0", b"d1"])
    producer.commit_transaction(DEADLINE_S)
    wait_until_decided(group_broker.bootstrap, topic)
    values, position, end = values_until_end(group_broker.bootstrap, f"{topic}.half", isolation)
    assert values == (wanted or [b"a0", b"c0", b"c2", b"b0", b"b2", b"d0"])
    assert position == end == 15  # 11 records and 4 markers


def values_until_end(
    bootstrap: str, topic: str, isolation: str
) -> tuple[list[bytes | None], int, int]:
    """What librdkafka shows of partition 0; its position then, and the end of the log."""
    consumer = Confluent().consumer(bootstrap, group_id=f"{topic}-t", isolation_level=isolation)
    place = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
    values: list[bytes | None] = []
    position, end = -1, 0
    deadline = monotonic() + DEADLINE_S
    try:
        consumer.assign([place])
        while position < end and monotonic() < deadline:
            for message in consumer.consume(100, 0.1):
                assert message.error() is None, message.error()
                values.append(message.value())
            _, end = consumer.get_watermark_offsets(place, timeout=DEADLINE_S)
            position = consumer.position([place])[0].offset
        return values, position, end
    finally:
        consumer.close()
