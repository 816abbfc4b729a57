"""The sender chooses the partition of a record: docs/guides/partitioning.md, tested."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import confluent_kafka
import pytest

from tests.support.clients import CLIENTS, DEADLINE_S, AioKafka, KafkaPython, Message, Sending
from tests.support.topics import create_topic

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 6


def test_F17_the_same_key_goes_to_the_same_partition_from_every_client(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic, PARTITIONS)
    messages = [Message(b"v", key=f"customer-{n}".encode()) for n in range(200)]

    chosen = [
        [partition for partition, _ in sender.produce(shared_broker.bootstrap, topic, messages)]
        for sender in CLIENTS
    ]

    assert chosen[0] == chosen[1] == chosen[2]
    assert set(chosen[0]) == set(range(PARTITIONS))


@pytest.mark.parametrize("client", [KafkaPython(), AioKafka()], ids=lambda client: client.name)
def test_F02_F17_without_a_key_the_load_is_spread(shared_broker, topic, client):
    create_topic(shared_broker.bootstrap, topic, PARTITIONS)

    places = client.produce(shared_broker.bootstrap, topic, [Message(b"v")] * 1200)

    counts = Counter(partition for partition, _ in places)
    assert set(counts) == set(range(PARTITIONS))
    assert min(counts.values()) > 100


def _in_turn(key: bytes | None, every: list[int], _available: list[int]) -> int:
    """Uses the number in the key, because a client may ask twice for the same record."""
    return every[int(key or b"0") % len(every)]


def _by_location(key: bytes | None, every: list[int], _available: list[int]) -> int:
    """Uses the place before the slash, so that the records of one place stay in order."""
    place = (key or b"").split(b"/")[0]
    return every[crc32(place) % len(every)]


@pytest.mark.parametrize("client", [KafkaPython(), AioKafka()], ids=lambda client: client.name)
def test_F18_F19_a_custom_partitioner_takes_partitions_in_turn(shared_broker, topic, client):
    create_topic(shared_broker.bootstrap, topic, PARTITIONS)

    places = client.produce(
        shared_broker.bootstrap,
        topic,
        [Message(b"v", key=b"%d" % n) for n in range(60)],
        Sending(partitioner=_in_turn),
    )

    assert [partition for partition, _ in places] == [n % PARTITIONS for n in range(60)]


@pytest.mark.parametrize("client", [KafkaPython(), AioKafka()], ids=lambda client: client.name)
def test_F18_F19_a_custom_partitioner_keeps_a_place_together(shared_broker, topic, client):
    create_topic(shared_broker.bootstrap, topic, PARTITIONS)
    keys = [f"{place}/{n}".encode() for n in range(20) for place in ("berlin", "pune", "quito")]

    places = client.produce(
        shared_broker.bootstrap,
        topic,
        [Message(b"v", key=key) for key in keys],
        Sending(partitioner=_by_location),
    )

    expected = [crc32(key.split(b"/")[0]) % PARTITIONS for key in keys]
    assert [partition for partition, _ in places] == expected


def test_F19_librdkafka_offers_its_partitioners_by_name(shared_broker, topic):
    create_topic(shared_broker.bootstrap, topic, PARTITIONS)
    spread: dict[str, set[int]] = {}
    for name in ("random", "consistent", "murmur2", "fnv1a_random"):
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": shared_broker.bootstrap,
                "partitioner": name,
                "sticky.partitioning.linger.ms": 0,
            }
        )
        went: list[int] = []
        for _ in range(300):
            producer.produce(
                topic,
                b"v",
                key=b"one key",
                on_delivery=lambda _error, sent, went=went: went.append(sent.partition()),
            )
        assert producer.flush(DEADLINE_S) == 0
        spread[name] = set(went)

    assert spread.pop("random") == set(range(PARTITIONS))
    assert all(len(partitions) == 1 for partitions in spread.values())
