"""Topics, made and looked at with a stock client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import confluent_kafka
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.support.clients import DEADLINE_S, Confluent
from tests.support.waiting import wait_until

__all__ = [
    "create_replicated",
    "create_topic",
    "end_offset",
    "partitions_of",
    "wait_in_sync",
    "wait_replicas",
    "wait_until_decided",
]


def create_topic(bootstrap: str, topic: str, partitions: int = 1, **keys: str) -> None:
    """Create a topic; `retention_ms="1"` means the topic key `retention.ms`."""
    config = {name.replace("_", "."): value for name, value in keys.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (created,) = admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values()
    created.result(DEADLINE_S)


def create_replicated(
    bootstrap: str,
    topic: str,
    *,
    partitions: int = 1,
    replication: int = 3,
    config: Mapping[str, str] | None = None,
) -> None:
    """Again until so many brokers are let in: that they are registered is told before."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, partitions, replication, config=dict(config or {}))
    deadline = monotonic() + DEADLINE_S
    while True:
        (made,) = admin.create_topics([new]).values()
        try:
            made.result(DEADLINE_S)
        except KafkaException as refused:
            is_early = refused.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR
            if not is_early or monotonic() > deadline:
                raise
        else:
            return


def end_offset(bootstrap: str, topic: str, partition: int = 0) -> int:
    consumer = Confluent().consumer(bootstrap)
    try:
        asked = confluent_kafka.TopicPartition(topic, partition)
        return int(consumer.get_watermark_offsets(asked, DEADLINE_S)[1])
    finally:
        consumer.close()


def partitions_of(bootstrap: str, topic: str) -> dict[int, Any]:
    """Leader, replicas and in-sync set of each partition, as one of these brokers says."""
    # A client that knows more brokers may ask any of them: a new one each time.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return dict(admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)


def wait_in_sync(bootstrap: str, topic: str, wanted: set[int]) -> None:
    """Return once these replicas, and no other, are in sync in every partition."""
    wait_until(
        lambda: all(set(one.isrs) == wanted for one in partitions_of(bootstrap, topic).values()),
        f"{topic} does not get {wanted} in sync",
    )


def wait_replicas(bootstrap: str, topic: str, wanted: set[int]) -> None:
    """Return once every partition has these replicas, and no other, all of them in sync."""

    def have() -> bool:
        found = partitions_of(bootstrap, topic).values()
        return all(set(one.replicas) == set(one.isrs) == wanted for one in found)

    wait_until(have, f"{topic} does not get the replicas {wanted}")


def wait_until_decided(bootstrap: str, topic: str) -> None:
    """Return once every record is committed or aborted.

    The end of a transaction is answered when it is decided, and its markers follow: until then a
    reader of committed records finds the end of a partition before what was just committed.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = monotonic() + DEADLINE_S
    while not _is_decided(admin, topic):
        assert monotonic() < deadline, f"{topic} has a transaction that nobody ends"


def _is_decided(admin: AdminClient, topic: str) -> bool:
    # librdkafka does not repeat this question when a leader has just died.
    with suppress(confluent_kafka.KafkaException):
        committed = _ends(admin, topic, IsolationLevel.READ_COMMITTED)
        return committed == _ends(admin, topic, IsolationLevel.READ_UNCOMMITTED)
    return False


def _ends(admin: AdminClient, topic: str, level: IsolationLevel) -> dict[int, int]:
    partitions = admin.list_topics(topic, DEADLINE_S).topics[topic].partitions
    places = [confluent_kafka.TopicPartition(topic, partition) for partition in partitions]
    asked = admin.list_offsets(
        dict.fromkeys(places, OffsetSpec.latest()),
        isolation_level=level,
        request_timeout=DEADLINE_S / 10,
    )
    return {place.partition: found.result(DEADLINE_S).offset for place, found in asked.items()}
