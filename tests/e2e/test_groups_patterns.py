"""Consumers that subscribe with a regular expression, which the broker evaluates (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.support.clients import DEADLINE_S, Confluent, Message
from tests.support.topics import create_topic
from tidemill.core.clock import SystemClock
from tidemill.core.limits import PATTERN_CHARS_MAX

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]


@pytest.fixture
def consumer(group_broker, topic) -> Iterator[confluent_kafka.Consumer]:
    made = confluent_kafka.Consumer(
        {
            "bootstrap.servers": group_broker.bootstrap,
            "group.id": f"{topic}-readers",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    yield made
    made.close()


def read_until(consumer, wanted):
    """Poll until these values have come; return all that came."""
    clock = SystemClock()
    deadline = clock.monotonic() + DEADLINE_S
    came = set()
    while not wanted <= came:
        assert clock.monotonic() < deadline, f"missing: {wanted - came}"
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            came.add(message.value())
    return came


def send(bootstrap, topic, value):
    create_topic(bootstrap, topic)
    Confluent().produce(bootstrap, topic, [Message(value)])


def test_F57_an_expression_reads_the_topics_that_match_now_and_later(group_broker, topic, consumer):
    bootstrap = group_broker.bootstrap
    send(bootstrap, f"{topic}-orders-eu", b"early")
    send(bootstrap, f"{topic}-payments", b"not ours")
    consumer.subscribe([f"^{topic}-orders-.*"])
    came = read_until(consumer, {b"early"})

    send(bootstrap, f"{topic}-orders-us", b"late")
    came |= read_until(consumer, {b"late"})
    assert came == {b"early", b"late"}


def test_F57_an_expression_and_a_name_go_together(group_broker, topic, consumer):
    bootstrap = group_broker.bootstrap
    send(bootstrap, f"{topic}-orders-eu", b"by expression")
    send(bootstrap, f"{topic}-payments", b"by name")
    consumer.subscribe([f"^{topic}-orders-.*", f"{topic}-payments"])
    assert len(read_until(consumer, {b"by expression", b"by name"})) == 2


def test_S37_an_expression_that_the_broker_refuses_is_named_as_the_cause(
    group_broker, topic, consumer
):
    """librdkafka does not show the broker's own text, which has the reason."""
    consumer.subscribe([f"^{topic}{'x' * PATTERN_CHARS_MAX}"])
    message = consumer.poll(DEADLINE_S)
    assert "regular expression is not valid" in message.error().str()


def test_the_description_of_the_group_works_for_members_with_an_expression(
    group_broker, topic, consumer
):
    bootstrap = group_broker.bootstrap
    send(bootstrap, f"{topic}-orders-eu", b"early")
    consumer.subscribe([f"^{topic}-orders-.*"])
    read_until(consumer, {b"early"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    group = f"{topic}-readers"
    described = admin.describe_consumer_groups([group])[group].result()
    (member,) = described.members
    assert [one.topic for one in member.assignment.topic_partitions] == [f"{topic}-orders-eu"]
