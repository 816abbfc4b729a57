"""Clients that reach one address only: its broker passes everything on to the owners (F37, F87)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.load import Load, Tail, read_logs
from tests.support.clients import DEADLINE_S, Confluent, KafkaPython, Message, kafka
from tests.support.waiting import wait_for_brokers
from tidemill.testing.cluster_process import ClusterProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data: Path = tmp_path_factory.mktemp("routes") / "data"
    made = ClusterProcess(
        data, "tidemill.route.listen=127.0.0.1:0", "group.initial.rebalance.delay.ms=0"
    )
    yield made.start()
    assert made.stop() == 0


@pytest.fixture
def route(cluster: ClusterProcess) -> str:
    """The only address that the clients of a test know: that of broker 0."""
    found = re.findall(r"^\[broker 0\] .*routes on (\S+)$", cluster.log(), re.MULTILINE)
    return found[-1]


def create(cluster: ClusterProcess, topic: str, partitions: int = 3) -> None:
    """Led by all three brokers."""
    wait_for_brokers(cluster.bootstrap, {0, 1, 2})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, partitions, 3)]).values()
    made.result(DEADLINE_S)
    found = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions.values()
    assert len({one.leader for one in found}) == min(3, partitions)


def test_F37_a_client_sees_one_broker_that_leads_everything(cluster, route, topic):
    create(cluster, topic)
    seen = AdminClient({"bootstrap.servers": route}).list_topics(timeout=DEADLINE_S)
    assert [f"{one.host}:{one.port}" for one in seen.brokers.values()] == [route]
    assert {one.leader for one in seen.topics[topic].partitions.values()} == set(seen.brokers)


@pytest.mark.parametrize("client", [Confluent(), KafkaPython()], ids=lambda one: one.name)
def test_F37_F87_what_is_produced_by_the_route_is_read_by_it(cluster, route, topic, client):
    create(cluster, topic)
    values = [b"%d" % number for number in range(300)]
    messages = [Message(value, partition=n % 3) for n, value in enumerate(values)]
    client.produce(route, topic, messages)
    read = client.consume(route, topic, len(values), {0: 0, 1: 0, 2: 0})
    assert sorted(one.value for one in read) == sorted(values)
    direct = read_logs(cluster.bootstrap, [(topic, index) for index in range(3)])
    assert [len(log) for log in direct.values()] == [100, 100, 100]


def test_F37_an_idempotent_producer_and_a_reader_at_the_end_lose_and_repeat_nothing(
    cluster, route, topic
):
    create(cluster, topic)
    logs = [(topic, index) for index in range(3)]
    tail = Tail(route, logs)
    load = Load(route, logs, seed=3).start()
    load.wait_acknowledged(3_000)
    load.finish()
    assert load.failures == []
    tail.finish(len(load.acknowledged))
    assert tail.failures == []
    for log in logs:
        sent = sorted((one.offset, one.value) for one in load.acknowledged if one.log == log)
        assert tail.read[log] == sent


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_F37_a_group_commits_and_goes_on_by_the_route(cluster, route, topic, protocol):
    create(cluster, topic)
    Confluent().produce(route, topic, [Message(b"%d" % n, partition=n % 3) for n in range(30)])
    options = {
        "bootstrap.servers": route,
        "group.id": f"{topic}-group",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "group.protocol": protocol,
    }
    consumer = confluent_kafka.Consumer(options)
    consumer.subscribe([topic])
    read = Confluent().read(consumer, 30)
    consumer.commit(asynchronous=False)
    consumer.close()
    assert len(read) == 30
    Confluent().produce(route, topic, [Message(b"next", partition=1)])
    consumer = confluent_kafka.Consumer(options)
    consumer.subscribe([topic])
    (only,) = Confluent().read(consumer, 1)
    consumer.close()
    assert only.value == b"next"
    admin = AdminClient({"bootstrap.servers": route})
    listed = admin.list_consumer_groups().result(DEADLINE_S)
    assert listed.errors == []
    assert f"{topic}-group" in {one.group_id for one in listed.valid}


def test_F37_transactions_pass_the_route(cluster, route, topic):
    create(cluster, topic)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": route, "transactional.id": f"{topic}-id"}
    )
    producer.init_transactions(DEADLINE_S)
    for is_commit in (False, True):
        producer.begin_transaction()
        for index in range(3):
            producer.produce(topic, b"yes" if is_commit else b"no", partition=index)
        if is_commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
    read = Confluent().consume(route, topic, 3, {0: 0, 1: 0, 2: 0})
    assert {one.value for one in read} == {b"yes"}


def test_F37_kafka_python_reads_in_a_group_by_the_route(cluster, route, topic):
    create(cluster, topic)
    KafkaPython().produce(route, topic, [Message(b"%d" % n, partition=n % 3) for n in range(30)])
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=route,
        group_id=f"{topic}-g",
        auto_offset_reset="earliest",
        # It may share out a topic that it knows nothing of yet, by whichever address.
        metadata_max_age_ms=500,
    )
    try:
        assert len(KafkaPython().read(consumer, 30)) == 30
        consumer.commit()
    finally:
        consumer.close()


def test_F37_a_route_survives_the_death_of_an_owner(cluster, route, topic):
    create(cluster, topic)
    logs = [(topic, index) for index in range(3)]
    tail = Tail(route, logs)
    load = Load(route, logs, seed=4).start()
    load.wait_acknowledged(1_000)
    cluster.kill_broker(1)
    load.wait_acknowledged(1_000)
    cluster.wait_log(r"^\[supervisor\] broker 1 is ready again")
    load.wait_acknowledged(1_000)
    load.finish()
    assert load.failures == []
    tail.finish(len(load.acknowledged))
    for log in logs:
        sent = sorted((one.offset, one.value) for one in load.acknowledged if one.log == log)
        assert tail.read[log] == sent
