"""Topics for tests of the source and the sink, read back by librdkafka."""

from __future__ import annotations

from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

from tests.support.clients import DEADLINE_S, Confluent, Record
from tests.support.topics import create_topic, end_offset, wait_until_decided

__all__ = ["create_topic", "records_of", "values_of"]


def records_of(bootstrap: str, topic: str, partitions: int = 1) -> list[Record]:
    """All records of a topic, by partition and offset."""
    ends = [end_offset(bootstrap, topic, partition) for partition in range(partitions)]
    found = Confluent().consume(bootstrap, topic, sum(ends), dict.fromkeys(range(partitions), 0))
    return sorted(found, key=lambda record: (record.partition, record.offset))


def values_of(bootstrap: str, topic: str, level: str) -> list[bytes]:
    """Every value in the topic that a reader of this level sees, by partition."""
    wait_until_decided(bootstrap, topic)
    settings = {"bootstrap.servers": bootstrap, "group.id": uuid4().hex, "isolation.level": level}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    found: dict[int, list[bytes]] = {}
    try:
        partitions = consumer.list_topics(topic, DEADLINE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(DEADLINE_S)
            assert message is not None, "the topic has no end"
            if message.error() is None:
                found.setdefault(message.partition(), []).append(message.value())
            else:
                ended.add(message.partition())
    finally:
        consumer.close()
    return [value for _, values in sorted(found.items()) for value in values]
