"""Stock clients and transactions: committed values are seen whole, aborted ones never."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import closing
from time import monotonic
from uuid import uuid4

import aiokafka
import confluent_kafka
import pytest
from aiokafka.errors import ProducerFenced
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from tests.support.clients import DEADLINE_S
from tests.support.topics import create_topic, wait_until_decided
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess
from tidemill.testing.cluster_process import ClusterProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

PARTITIONS = 3
KILLS = 4
INPUTS = 40
BATCH = 5


def new_id() -> str:
    return f"id-{uuid4().hex[:12]}"


def transactional(
    broker: BrokerProcess | ClusterProcess, transactional_id: str, **settings: object
):
    """An initialised producer of librdkafka."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    producer.init_transactions(DEADLINE_S)
    return producer


def write(producer: confluent_kafka.Producer, topic: str, values: Sequence[str]) -> None:
    """One transaction's values, over all partitions; the transaction stays open."""
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % PARTITIONS)
    producer.flush(DEADLINE_S)


def read(
    broker: BrokerProcess | ClusterProcess, topic: str, *, isolation: str = "read_committed"
) -> list[str]:
    """All values that a reader who has reached the end of every partition has seen."""
    wait_until_decided(broker.bootstrap, topic)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": new_id(),
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    with closing(consumer):
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
        )
        values, at_end, deadline = [], set(), monotonic() + DEADLINE_S
        while len(at_end) < PARTITIONS:
            assert monotonic() < deadline, f"at the end of {at_end} only: {values}"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                values.append(message.value().decode())
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                at_end.add(message.partition())
    return sorted(values)


@pytest.fixture
def wide(shared_broker, topic):
    """A topic with three partitions."""
    create_topic(shared_broker.bootstrap, topic, PARTITIONS)
    return topic


def test_F41_T34_librdkafka_commits_and_aborts(shared_broker, wide):
    producer = transactional(shared_broker, new_id())
    write(producer, wide, ["a", "b", "c"])
    producer.commit_transaction(DEADLINE_S)
    write(producer, wide, ["x", "y", "z"])
    producer.abort_transaction(DEADLINE_S)
    write(producer, wide, ["d", "e", "f"])
    producer.commit_transaction(DEADLINE_S)
    assert read(shared_broker, wide) == ["a", "b", "c", "d", "e", "f"]
    everything = read(shared_broker, wide, isolation="read_uncommitted")
    assert everything == ["a", "b", "c", "d", "e", "f", "x", "y", "z"]


def test_F41_T34_kafka_python_commits_and_aborts(shared_broker, wide):
    producer = KafkaProducer(
        bootstrap_servers=shared_broker.bootstrap, transactional_id=new_id(), acks="all"
    )
    producer.init_transactions()
    for values, end in (
        ("ab", producer.commit_transaction),
        ("xy", producer.abort_transaction),
        ("cd", producer.commit_transaction),
    ):
        producer.begin_transaction()
        for number, value in enumerate(values):
            producer.send(wide, value.encode(), partition=number)
        producer.flush(DEADLINE_S)
        end()
    producer.close()
    assert read(shared_broker, wide) == ["a", "b", "c", "d"]


def test_F41_T34_aiokafka_commits_and_aborts(shared_broker, wide, run):
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=shared_broker.bootstrap, transactional_id=new_id()
        )
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait(wide, b"a", partition=0)
            await producer.send_and_wait(wide, b"b", partition=1)
        await producer.begin_transaction()
        await producer.send_and_wait(wide, b"x", partition=0)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(wide, b"c", partition=2)
        await producer.stop()

    run(produce())
    assert read(shared_broker, wide) == ["a", "b", "c"]


def test_T52_I19_a_second_librdkafka_producer_fences_the_first(shared_broker, wide):
    transactional_id = new_id()
    first = transactional(shared_broker, transactional_id)
    write(first, wide, ["x", "y", "z"])
    second = transactional(shared_broker, transactional_id)
    with pytest.raises(confluent_kafka.KafkaException) as refusal:
        first.commit_transaction(DEADLINE_S)
    assert refusal.value.args[0].fatal()
    write(second, wide, ["a", "b", "c"])
    second.commit_transaction(DEADLINE_S)
    assert read(shared_broker, wide) == ["a", "b", "c"]


def test_T52_I19_a_second_aiokafka_producer_fences_the_first(shared_broker, wide, run):
    async def fence() -> None:
        settings = {
            "bootstrap_servers": shared_broker.bootstrap,
            "transactional_id": new_id(),
        }
        first = aiokafka.AIOKafkaProducer(**settings)
        await first.start()
        await first.begin_transaction()
        await first.send_and_wait(wide, b"x", partition=0)
        second = aiokafka.AIOKafkaProducer(**settings)
        await second.start()
        with pytest.raises(ProducerFenced):
            await first.commit_transaction()
        async with second.transaction():
            await second.send_and_wait(wide, b"a", partition=0)
        await second.stop()
        await first.stop()

    run(fence())
    assert read(shared_broker, wide) == ["a"]


def test_I23_a_transaction_that_is_never_ended_does_not_hold_up_readers(shared_broker, wide):
    forgotten = transactional(shared_broker, new_id(), transaction_timeout_ms=1000)
    write(forgotten, wide, ["x", "y", "z"])
    other = transactional(shared_broker, new_id())
    write(other, wide, ["a", "b", "c"])
    other.commit_transaction(DEADLINE_S)
    assert read(shared_broker, wide) == ["a", "b", "c"]


# --- consume, transform, produce -----------------------------------------------------------------


def fill(broker: BrokerProcess, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(INPUTS):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    producer.flush(DEADLINE_S)


def test_I24_librdkafka_copies_a_topic_exactly_once(group_broker, topic):
    source, target = f"{topic}-in", f"{topic}-out"
    create_topic(group_broker.bootstrap, source, PARTITIONS)
    create_topic(group_broker.bootstrap, target, PARTITIONS)
    fill(group_broker, source)
    group, transactional_id = new_id(), new_id()
    copied = 0
    while copied < INPUTS:
        # Each round is a new process that goes on where the last one committed; every second
        # transaction is aborted and must leave neither values nor offsets.
        # The last one leaves nothing that could be aborted.
        outcomes = (True, False) if INPUTS - copied > BATCH else (True,)
        with closing(reader(group_broker, group, source)) as consumer:
            producer = transactional(group_broker, transactional_id)
            copied += sum(copy(consumer, producer, target, is_commit=one) for one in outcomes)
    expected = sorted(f"copy of {number}" for number in range(INPUTS))
    assert read(group_broker, target) == expected


def reader(broker: BrokerProcess, group: str, topic: str) -> confluent_kafka.Consumer:
    """A member of the group, which reads committed values."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    return consumer


def copy(
    consumer: confluent_kafka.Consumer,
    producer: confluent_kafka.Producer,
    target: str,
    *,
    is_commit: bool,
) -> int:
    """Copy a few values and the offsets behind them in one transaction; how many are committed."""
    messages = consumer.consume(BATCH, DEADLINE_S)
    producer.begin_transaction()
    for message in messages:
        value = f"copy of {message.value().decode()}".encode()
        producer.produce(target, value, partition=message.partition())
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), DEADLINE_S
    )
    if is_commit:
        producer.commit_transaction(DEADLINE_S)
    else:
        producer.abort_transaction(DEADLINE_S)
    return len(messages) if is_commit else 0


def test_T55_kafka_python_sends_offsets_to_a_transaction(group_broker, topic):
    create_topic(group_broker.bootstrap, topic, PARTITIONS)
    group = new_id()
    producer = KafkaProducer(
        bootstrap_servers=group_broker.bootstrap, transactional_id=new_id(), acks="all"
    )
    producer.init_transactions()
    partition = TopicPartition(topic, 0)

    def committed() -> int | None:
        with closing(
            KafkaConsumer(bootstrap_servers=group_broker.bootstrap, group_id=group)
        ) as consumer:
            return consumer.committed(partition)

    for offset, end in ((7, producer.abort_transaction), (9, producer.commit_transaction)):
        producer.begin_transaction()
        producer.send(topic, b"v", partition=0)
        producer.send_offsets_to_transaction({partition: OffsetAndMetadata(offset, "", -1)}, group)
        end()
    producer.close()
    assert committed() == 9


# --- a crash right after the answer --------------------------------------------------------------


def test_I20_an_answered_commit_survives_a_kill_whatever_the_producer_does_next(new_broker, topic):
    """Kafka 4.3.1 loses this: its coordinator may come back before all markers are written."""
    broker = new_broker()
    create_topic(broker.bootstrap, topic, PARTITIONS)
    transactional_id = new_id()
    expected: list[str] = []
    for round_ in range(KILLS):
        producer = transactional(broker, transactional_id)
        values = [f"{round_}-{number}" for number in range(PARTITIONS)]
        write(producer, topic, values)
        producer.commit_transaction(DEADLINE_S)
        broker.kill()
        expected += values
        broker.start()
        # The next instance aborts: that must hide nothing that was committed.
        again = transactional(broker, transactional_id)
        write(again, topic, ["x", "y", "z"])
        again.abort_transaction(DEADLINE_S)
        assert read(broker, topic) == sorted(expected)


# --- transactions that hang ----------------------------------------------------------------------


def tidemill(
    broker: BrokerProcess | ClusterProcess, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TIDEMILL, "transaction", *arguments, "--bootstrap", broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def abort_at(topic: str, partition: int, start_offset: int) -> list[str]:
    place = ["--topic", topic, "--partition", str(partition)]
    return ["abort", *place, "--start-offset", str(start_offset)]


def forget_transactions(broker: BrokerProcess) -> None:
    """The broker comes back without what its transaction coordinator has written."""
    broker.kill()
    lost = list(broker.data_dir.rglob("__transaction_state-*"))
    assert lost
    for directory in lost:
        shutil.rmtree(directory)
    broker.start()


def test_T34_a_transaction_that_hangs_is_found_and_aborted(new_broker, topic):
    broker = new_broker()
    create_topic(broker.bootstrap, topic, PARTITIONS)
    before = transactional(broker, new_id())
    write(before, topic, ["a", "b", "c"])
    before.commit_transaction(DEADLINE_S)
    lost = transactional(broker, new_id())
    write(lost, topic, ["x", "y", "z"])
    forget_transactions(broker)

    found = json.loads(tidemill(broker, "list", "--hanging", "--json").stdout)
    assert [(one["topic"], one["partition"]) for one in found] == [
        (topic, index) for index in range(PARTITIONS)
    ]
    for one in found:
        ran = tidemill(broker, *abort_at(topic, one["partition"], one["first_offset"]))
        assert ran.returncode == 0, ran.stderr
        assert f"producer {one['producer_id']}" in ran.stdout

    assert json.loads(tidemill(broker, "list", "--hanging", "--json").stdout) == []
    after = transactional(broker, new_id())
    write(after, topic, ["d", "e", "f"])
    after.commit_transaction(DEADLINE_S)
    assert read(broker, topic) == list("abcdef")


# --- several brokers -----------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path, topic):
    """Three brokers, and a topic whose partitions are led by all of them."""
    started = ClusterProcess(tmp_path / "data", brokers=PARTITIONS)
    started.start()
    try:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        (made,) = admin.create_topics([NewTopic(topic, PARTITIONS, PARTITIONS)]).values()
        made.result(DEADLINE_S)
        yield started
    finally:
        started.stop()


def test_I20_transactions_over_three_brokers_survive_the_death_of_each(cluster, topic):
    transactional_id = new_id()
    expected: list[str] = []
    for round_ in range(PARTITIONS):
        # One of the brokers coordinates, each leads a partition: all three roles are killed.
        producer = transactional(cluster, transactional_id)
        for attempt in range(3):
            values = [f"{round_}-{attempt}-{number}" for number in range(PARTITIONS)]
            write(producer, topic, values)
            if attempt == 1:
                producer.abort_transaction(DEADLINE_S)
            else:
                producer.commit_transaction(DEADLINE_S)
                expected += values
        cluster.kill_broker(round_)
    assert read(cluster, topic) == sorted(expected)


def test_S32_a_transaction_that_a_coordinator_knows_is_not_aborted_by_its_place(cluster, topic):
    """Two of the three leaders at least have to ask another broker."""
    producer = transactional(cluster, new_id())
    write(producer, topic, ["a", "b", "c"])
    for partition in range(PARTITIONS):
        ran = tidemill(cluster, *abort_at(topic, partition, 0))
        assert ran.returncode == 1
        assert "INVALID_TXN_STATE" in ran.stderr
    producer.commit_transaction(DEADLINE_S)
    assert read(cluster, topic) == ["a", "b", "c"]
