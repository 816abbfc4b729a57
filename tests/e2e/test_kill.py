"""Brokers are killed, stopped and cut off under load: acknowledged records are kept."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from time import monotonic

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.e2e.cutting_proxy import CuttingProxy
from tests.e2e.load import Load, Log, Tail, read_logs
from tests.support.clients import DEADLINE_S, Confluent, KafkaPython, Message, Sending, kafka
from tests.support.topics import create_topic
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess, up_command

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

SEED = 20261115
KILLS = 4
CUTS = 12
LOGS: list[Log] = [
    *((f"grouped-{n}", partition) for n in range(2) for partition in range(2)),
    *(("paged", partition) for partition in range(2)),
]
STOP_WITHIN_S = 10.0
RETURN_MS = 2000


def _create_topics(broker: BrokerProcess) -> None:
    create_topic(broker.bootstrap, "grouped-0", 2, segment_bytes="30000")
    create_topic(broker.bootstrap, "grouped-1", 2)
    create_topic(broker.bootstrap, "paged", 2, tidemill_flush="os")


@dataclass(slots=True)
class Outcome:
    load: Load
    tail: Tail
    logs: dict[Log, list[bytes]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """A load during which the broker was killed several times, after random numbers of answers."""
    rng = Random(SEED)
    broker = BrokerProcess(tmp_path_factory.mktemp("killed") / "data").start()
    try:
        _create_topics(broker)
        load = Load(broker.bootstrap, LOGS, seed=SEED).start()
        tail = Tail(broker.bootstrap, LOGS)
        for _ in range(KILLS):
            load.wait_acknowledged(rng.randint(1, 2000))
            broker.kill()
            broker.start()
        load.wait_acknowledged(500)
        load.finish()
        logs = read_logs(broker.bootstrap, LOGS)
        tail.finish(sum(map(len, logs.values())))
        yield Outcome(load, tail, logs)
    finally:
        broker.stop()


def test_I1_F22_nothing_acknowledged_is_lost_when_the_broker_is_killed(killed):
    lost = [
        one
        for one in killed.load.acknowledged
        if one.offset >= len(killed.logs[one.log]) or killed.logs[one.log][one.offset] != one.value
    ]
    assert not lost


def test_I4_I18_no_record_is_there_twice_after_kills(killed):
    counts = Counter(value for values in killed.logs.values() for value in values)
    assert [value for value, count in counts.items() if count > 1] == []


def test_I3_I5_each_producers_records_are_all_there_in_the_order_of_sending(killed):
    assert killed.load.failures == []
    for (producer, log), sent in killed.load.sent.items():
        prefix = b"%d:" % producer
        assert [value for value in killed.logs[log] if value.startswith(prefix)] == sent


def test_I2_I7_a_reader_saw_every_record_once_and_in_order_through_all_kills(killed):
    assert killed.tail.failures == []
    assert killed.tail.read == {log: list(enumerate(v)) for log, v in killed.logs.items()}


def test_L4_sigterm_under_load_ends_cleanly_and_loses_nothing(
    new_broker,
):
    broker = new_broker()
    _create_topics(broker)
    load = Load(broker.bootstrap, LOGS, seed=SEED).start()
    load.wait_acknowledged(1000)

    asked_at = monotonic()
    exit_code = broker.stop()
    took_s = monotonic() - asked_at

    assert exit_code == 0
    assert took_s < STOP_WITHIN_S
    assert list(broker.data_dir.glob("**/clean-shutdown"))
    broker.start()
    load.wait_acknowledged(500)
    load.finish()
    assert load.failures == []
    logs = read_logs(broker.bootstrap, LOGS)
    for (producer, log), sent in load.sent.items():
        prefix = b"%d:" % producer
        assert [value for value in logs[log] if value.startswith(prefix)] == sent


def test_a_second_broker_on_the_same_data_is_refused_in_one_line(shared_broker):
    ran = subprocess.run(
        up_command(TIDEMILL, shared_broker.data_dir, "127.0.0.1:0", ()),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert str(shared_broker.data_dir) in line


def test_a_broker_whose_port_is_taken_says_so_in_one_line(shared_broker, tmp_path):
    ran = subprocess.run(
        up_command(TIDEMILL, tmp_path / "data", shared_broker.bootstrap, ()),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )

    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert shared_broker.bootstrap in line


@pytest.fixture
def proxied(
    new_broker: Callable[..., BrokerProcess],
) -> Iterator[tuple[BrokerProcess, CuttingProxy]]:
    """A broker that clients reach only through a relay."""
    proxy = CuttingProxy(SEED)
    try:
        broker = new_broker(f"advertised.listeners={proxy.address}")
        proxy.target = broker.bootstrap
        yield broker, proxy
    finally:
        proxy.close()


def test_I4_F39_F40_cut_connections_neither_lose_nor_duplicate_records(proxied, topic, client):
    _, proxy = proxied
    create_topic(proxy.address, topic)
    messages = [Message(b"%0100d" % n) for n in range(3000)]
    how = Sending(idempotent=True, batch_bytes_max=1000)

    proxy.cuts_left = CUTS
    places = client.produce(proxy.address, topic, messages, how)
    proxy.cuts_left = 0

    assert proxy.cuts >= CUTS / 4
    assert places == [(0, n) for n in range(3000)]
    assert read_logs(proxy.address, [(topic, 0)])[topic, 0] == [m.value for m in messages]


def test_T35_consumers_continue_after_the_broker_was_killed(proxied, topic):
    broker, proxy = proxied
    create_topic(proxy.address, topic)
    librdkafka = Confluent().consumer(proxy.address, reconnect_backoff_max_ms=200)
    librdkafka.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    # This client fetches in a session, which a restarted broker does not know.
    python = KafkaPython().consumer(proxy.address, reconnect_backoff_max_ms=200)
    python.assign([kafka.TopicPartition(topic, 0)])
    python.seek(kafka.TopicPartition(topic, 0), 0)
    try:
        for turn in range(3):
            value = b"turn %d" % turn
            Confluent().produce(proxy.address, topic, [Message(value)])
            assert [r.value for r in Confluent().read(librdkafka, 1)] == [value]
            assert [r.value for r in KafkaPython().read(python, 1)] == [value]
            broker.kill()
            broker.start()
    finally:
        librdkafka.close()
        python.close()


@pytest.mark.parametrize("reset", ["latest", "error"])
def test_T37_a_consumer_that_lost_nothing_never_resets_its_position(new_broker, topic, reset):
    """All that it read is deleted and the broker killed; the next records are all its own."""
    broker = new_broker()
    create_topic(broker.bootstrap, topic)
    start = confluent_kafka.TopicPartition(topic, 0, 0)
    # It comes back after the new records are there: at once it could reset without a loss.
    consumer = Confluent().consumer(
        broker.bootstrap,
        auto_offset_reset=reset,
        reconnect_backoff_ms=RETURN_MS,
        reconnect_backoff_max_ms=RETURN_MS,
    )
    consumer.assign([start])
    try:
        _produce_and_read(broker, consumer, b"deleted")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        end = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_END)
        for deleted in admin.delete_records([end]).values():
            assert deleted.result(DEADLINE_S).low_watermark == 5
        broker.kill()
        broker.start()
        _produce_and_read(broker, consumer, b"new")
    finally:
        consumer.close()


def _produce_and_read(
    broker: BrokerProcess, consumer: confluent_kafka.Consumer, name: bytes
) -> None:
    (assigned,) = consumer.assignment()
    values = [b"%s %d" % (name, n) for n in range(5)]
    Confluent().produce(broker.bootstrap, assigned.topic, [Message(value) for value in values])
    assert [record.value for record in Confluent().read(consumer, 5)] == values
