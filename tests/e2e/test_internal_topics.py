"""The broker's own topics, as tools that list, create and change topics see them."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.support.clients import DEADLINE_S, Confluent, Message
from tests.support.topics import create_topic
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

OFFSETS = "__consumer_offsets"


@pytest.fixture
def fresh_broker(new_broker) -> BrokerProcess:
    """A broker on which no client has used a group."""
    return new_broker("group.initial.rebalance.delay.ms=0")


def _commit_one(bootstrap: str, topic: str) -> int:
    """Read one record as a group and commit it; the committed offset as a new consumer sees it."""
    reader = Confluent().consumer(bootstrap, group_id=f"{topic}-g", auto_offset_reset="earliest")
    reader.subscribe([topic])
    record = reader.poll(DEADLINE_S)
    assert record is not None
    assert record.error() is None
    reader.commit(record, asynchronous=False)
    reader.close()
    later = Confluent().consumer(bootstrap, group_id=f"{topic}-g")
    (found,) = later.committed([confluent_kafka.TopicPartition(topic, 0)], DEADLINE_S)
    later.close()
    return int(found.offset)


def _result(futures):
    (future,) = futures.values()
    return future.result(DEADLINE_S)


def test_tools_that_ask_for_the_offsets_topic_first_do_not_change_how_it_is_made(
    fresh_broker, topic
):
    admin = AdminClient({"bootstrap.servers": fresh_broker.bootstrap})
    for _ in range(2):
        asked = admin.list_topics(OFFSETS, timeout=DEADLINE_S).topics[OFFSETS]
        assert asked.error.code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        _result(admin.create_topics([NewTopic(OFFSETS, 4, 1)]))
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_EXCEPTION

    create_topic(fresh_broker.bootstrap, topic, 1)
    Confluent().produce(fresh_broker.bootstrap, topic, [Message(b"first")])
    assert _commit_one(fresh_broker.bootstrap, topic) == 1

    made = admin.list_topics(OFFSETS, timeout=DEADLINE_S).topics[OFFSETS]
    assert len(made.partitions) == 50
    keys = _result(admin.describe_configs([ConfigResource(ResourceType.TOPIC, OFFSETS)]))
    assert keys["cleanup.policy"].value == "compact"
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        _result(admin.create_partitions([NewPartitions(OFFSETS, 60)]))
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_PARTITIONS
