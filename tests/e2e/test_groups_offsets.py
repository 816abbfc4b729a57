"""Committed offsets of stock clients: committed by hand, automatically, and without a group."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
import confluent_kafka
import pytest

from tests.e2e.group_members import KINDS, Kind
from tests.e2e.group_watch import GroupWatch
from tests.support.clients import DEADLINE_S, Confluent, KafkaPython, Message, kafka
from tests.support.coroutines import run
from tests.support.topics import create_topic

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(params=KINDS.values(), ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> int:
    """The committed offset; -1001 if there is none."""
    consumer = Confluent().consumer(bootstrap, group_id=group)
    try:
        asked = confluent_kafka.TopicPartition(topic, partition)
        (found,) = consumer.committed([asked], DEADLINE_S)
        return int(found.offset)
    finally:
        consumer.close()


def test_F13_F46_F51_a_group_continues_after_its_last_commit_with_the_records_sent_meanwhile(
    group_broker, topic, kind
):
    create_topic(group_broker.bootstrap, topic, 2)
    values: list[bytes] = []
    watch = GroupWatch()
    for day in range(3):
        # Producers come and go while no consumer reads; none of them waits for one.
        for producer in range(2):
            sent = [b"day %d, producer %d, %d" % (day, producer, n) for n in range(10)]
            messages = [Message(value, partition=n % 2) for n, value in enumerate(sent)]
            Confluent().produce(group_broker.bootstrap, topic, messages)
            values += sent
        with kind.join("reader", watch, group_broker.bootstrap, f"{topic}-g", [topic]):
            watch.wait_values(values)

    assert watch.wrong == []
    assert sorted(watch.values) == sorted(values)
    assert {log: sorted(read) == read for log, read in watch.offsets.items()} == {
        (topic, 0): True,
        (topic, 1): True,
    }


# --- commits that clients make by themselves -----------------------------------------------------


def _auto_confluent(bootstrap: str, group: str, topic: str, count: int) -> None:
    consumer = Confluent().consumer(
        bootstrap, group_id=group, enable_auto_commit=True, auto_offset_reset="earliest"
    )
    consumer.subscribe([topic])
    Confluent().read(consumer, count)
    consumer.close()


def _auto_kafka_python(bootstrap: str, group: str, topic: str, count: int) -> None:
    consumer = KafkaPython().consumer(
        bootstrap, group_id=group, enable_auto_commit=True, auto_offset_reset="earliest"
    )
    consumer.subscribe([topic])
    read = 0
    while read < count:
        read += sum(map(len, consumer.poll(5_000).values()))
    consumer.close()


def _auto_aiokafka(bootstrap: str, group: str, topic: str, count: int) -> None:
    async def read() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            async with asyncio.timeout(DEADLINE_S):
                for _ in range(count):
                    await consumer.getone()
        finally:
            await consumer.stop()

    run(read())


@pytest.mark.parametrize("read", [_auto_confluent, _auto_kafka_python, _auto_aiokafka])
def test_F51_an_automatic_commit_is_the_position_of_the_client(group_broker, topic, read):
    create_topic(group_broker.bootstrap, topic)
    Confluent().produce(group_broker.bootstrap, topic, [Message(b"%d" % n) for n in range(20)])

    read(group_broker.bootstrap, f"{topic}-g", topic, 20)

    assert committed(group_broker.bootstrap, f"{topic}-g", topic) == 20


# --- commits without membership ------------------------------------------------------------------


def _simple_confluent(bootstrap: str, group: str, topic: str) -> tuple[int, str]:
    consumer = Confluent().consumer(bootstrap, group_id=group)
    place = confluent_kafka.TopicPartition(topic, 0, 7, "a note")
    consumer.assign([place])
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()
    again = Confluent().consumer(bootstrap, group_id=group)
    (found,) = again.committed([confluent_kafka.TopicPartition(topic, 0)], DEADLINE_S)
    again.close()
    return found.offset, found.metadata


def _simple_kafka_python(bootstrap: str, group: str, topic: str) -> tuple[int, str]:
    place = kafka.TopicPartition(topic, 0)
    consumer = KafkaPython().consumer(bootstrap, group_id=group)
    consumer.assign([place])
    consumer.commit({place: kafka.OffsetAndMetadata(7, "a note", -1)})
    found = consumer.committed(place, metadata=True)
    consumer.close()
    return found.offset, found.metadata


def _simple_aiokafka(bootstrap: str, group: str, topic: str) -> tuple[int, str]:
    async def commit() -> Any:
        place = aiokafka.TopicPartition(topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            consumer.assign([place])
            await consumer.commit({place: (7, "a note")})
            return await consumer.committed(place)
        finally:
            await consumer.stop()

    return run(commit()), "a note"  # it does not return the metadata of an offset


@pytest.mark.parametrize("commit", [_simple_confluent, _simple_kafka_python, _simple_aiokafka])
def test_T46_a_consumer_without_membership_keeps_its_place(group_broker, topic, commit):
    create_topic(group_broker.bootstrap, topic)

    assert commit(group_broker.bootstrap, f"{topic}-g", topic) == (7, "a note")


@pytest.mark.parametrize("protocol", ["librdkafka-classic", "librdkafka-consumer"])
def test_T46_strangers_cannot_commit_for_a_group_that_has_members(group_broker, topic, protocol):
    create_topic(group_broker.bootstrap, topic)
    watch, group = GroupWatch(), f"{topic}-g"
    with KINDS[protocol].join("member", watch, group_broker.bootstrap, group, [topic]):
        watch.wait_shares(member=1)
        stranger = Confluent().consumer(group_broker.bootstrap, group_id=group)
        place = confluent_kafka.TopicPartition(topic, 0, 5)
        stranger.assign([place])
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            stranger.commit(offsets=[place], asynchronous=False)
        stranger.close()

    assert refused.value.args[0].code() == confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID
    assert committed(group_broker.bootstrap, group, topic) == confluent_kafka.OFFSET_INVALID


def test_T42_of_two_members_with_one_instance_id_the_older_is_fenced(group_broker, topic):
    create_topic(group_broker.bootstrap, topic)
    older, newer = GroupWatch(), GroupWatch()
    where = (group_broker.bootstrap, f"{topic}-g", [topic])
    kind = KINDS["librdkafka-classic"]
    with kind.join("older", older, *where, group_instance_id="one"):
        older.wait_shares(older=1)
        with kind.join("newer", newer, *where, group_instance_id="one"):
            newer.wait_shares(newer=1)
            with pytest.raises(AssertionError, match="fenced by other consumer"):
                older.wait("the older one to end", lambda: False)
    assert newer.wrong == []


def test_F92_a_reader_sees_what_was_acknowledged_and_never_goes_back(group_broker, topic):
    create_topic(group_broker.bootstrap, topic)
    watch = GroupWatch()
    kind = KINDS["librdkafka-classic"]
    with kind.join("reader", watch, group_broker.bootstrap, f"{topic}-g", [topic]):
        for n in range(20):
            ((_, offset),) = Confluent().produce(
                group_broker.bootstrap, topic, [Message(b"%d" % n)]
            )
            watch.wait(f"{n}", lambda at=offset: at in watch.offsets[topic, 0])

    assert watch.offsets[topic, 0] == list(range(20))
