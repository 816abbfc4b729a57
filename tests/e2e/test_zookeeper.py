"""Brokers that meet in a real ZooKeeper, each started by its own command, and stock clients."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.load import Load, read_logs
from tests.support.clients import DEADLINE_S, Confluent, Message
from tidemill.testing.broker_process import BrokerProcess, BrokerStartFailed
from tidemill.testing.zookeeper_process import ZookeeperProcess, is_available

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="needs Java and the jars of pyspark"),
]

SESSION_S = 2.0
PARTITIONS = 3


class Members:
    """Three brokers; each may be killed and started again by itself."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.brokers = [new_member(directory, zookeeper, number) for number in range(3)]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> Members:
        for broker in self.brokers:  # all at once
            broker.spawn()
        for broker in self.brokers:
            broker.wait_ready()
        for broker in self.brokers:
            wait_for_brokers(broker.bootstrap, {0, 1, 2})
        return self

    def create(self, topic: str) -> list[tuple[str, int]]:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        made = admin.create_topics([NewTopic(topic, PARTITIONS, 3)]).values()
        for one in made:
            one.result(DEADLINE_S)
        return [(topic, index) for index in range(PARTITIONS)]

    def leaders(self, topic: str, *, asked: int) -> set[int]:
        """Who leads, as one broker says."""
        admin = AdminClient({"bootstrap.servers": self.brokers[asked].bootstrap})
        found = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return {partition.leader for partition in found.values()}

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()


def new_member(directory: Path, zookeeper: str, number: int, name: str = "") -> BrokerProcess:
    return BrokerProcess(
        directory / (name or f"broker-{number}"),
        "min.insync.replicas=2",
        f"zookeeper.session.timeout.ms={int(SESSION_S * 1000)}",
        flags=["--zookeeper", zookeeper, "--broker-id", str(number), "--rack", f"r{number}"],
    )


def wait_for_brokers(address: str, wanted: set[int]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    admin = AdminClient({"bootstrap.servers": address})
    while (seen := set(admin.list_topics(timeout=DEADLINE_S).brokers)) != wanted:
        assert time.monotonic() < deadline, f"{address} names {seen}"


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZookeeperProcess]:
    server = ZookeeperProcess(tmp_path / "zookeeper").start()
    yield server
    server.stop()


@pytest.fixture
def members(tmp_path: Path, zookeeper: ZookeeperProcess) -> Iterator[Members]:
    made = Members(tmp_path, zookeeper.address)
    yield made.start()
    made.stop()


@pytest.fixture
def new_load(members: Members) -> Iterator[Callable[[str], Load]]:
    """Starts producers on a new topic; at the end everything acknowledged is there, once."""
    loads: list[tuple[Load, list[tuple[str, int]]]] = []

    def start(topic: str) -> Load:
        logs = members.create(topic)
        load = Load(members.bootstrap, logs, seed=1)
        loads.append((load, logs))
        return load.start()

    yield start
    for load, logs in loads:
        load.finish()
        assert load.failures == []
        found = read_logs(members.bootstrap, logs)
        for one in load.acknowledged:
            assert found[one.log][one.offset] == one.value


def test_F97_three_brokers_are_one_cluster_and_survive_kill_9_of_each(members, new_load, topic):
    load = new_load(topic)
    load.wait_acknowledged(200)
    for broker in members.brokers:
        broker.kill()
        load.wait_acknowledged(200)
        broker.start()
        wait_for_brokers(broker.bootstrap, {0, 1, 2})
    load.wait_acknowledged(200)


def test_a_broker_that_stands_still_longer_than_its_session_loses_what_it_led_and_returns(
    members, new_load, topic
):
    load = new_load(topic)
    load.wait_acknowledged(200)
    stopped = members.brokers[1]
    os.kill(stopped.pid, signal.SIGSTOP)
    deadline = time.monotonic() + DEADLINE_S
    while 1 in members.leaders(topic, asked=0):
        assert time.monotonic() < deadline
    load.wait_acknowledged(200)
    os.kill(stopped.pid, signal.SIGCONT)
    wait_for_brokers(stopped.bootstrap, {0, 1, 2})
    load.wait_acknowledged(200)


def test_ZooKeeper_can_restart_while_producers_go_on(members, zookeeper, new_load, topic):
    load = new_load(topic)
    load.wait_acknowledged(200)
    zookeeper.kill()
    load.wait_acknowledged(50)
    zookeeper.start()
    load.wait_acknowledged(500)
    admin = AdminClient({"bootstrap.servers": members.bootstrap})
    for one in admin.create_topics([NewTopic(f"{topic}-later", 1, 3)]).values():
        one.result(DEADLINE_S)


def test_a_clean_stop_hands_over_and_a_restart_finds_everything(members, topic):
    members.create(topic)
    messages = [Message(b"%d" % number, partition=number % PARTITIONS) for number in range(300)]
    Confluent().produce(members.bootstrap, topic, messages)
    for broker in members.brokers:
        assert broker.stop() == 0
        broker.start()
    found = read_logs(members.bootstrap, [(topic, index) for index in range(PARTITIONS)])
    assert sorted(value for log in found.values() for value in log) == sorted(
        message.value for message in messages
    )


def test_a_taken_broker_id_is_refused_in_one_line(members, tmp_path, zookeeper):
    other = new_member(tmp_path, zookeeper.address, 1, name="other")
    with pytest.raises(BrokerStartFailed, match="another broker has this id"):
        other.start()


def test_a_data_directory_of_another_cluster_is_refused_in_one_line(tmp_path, zookeeper):
    first = new_member(tmp_path, f"{zookeeper.address}/one", 0)
    first.start()
    assert first.stop() == 0
    with pytest.raises(BrokerStartFailed, match=r"belongs to cluster .*, this broker to"):
        new_member(tmp_path, f"{zookeeper.address}/two", 0).start()


def test_a_data_directory_remembers_its_store_and_refuses_another(tmp_path, zookeeper):
    member = new_member(tmp_path, zookeeper.address, 0)
    member.start()
    assert member.stop() == 0
    with pytest.raises(
        BrokerStartFailed, match=f"belongs to a cluster in ZooKeeper.*{zookeeper.address}"
    ):
        BrokerProcess(tmp_path / "broker-0").start()
    assert not (tmp_path / "broker-0" / "coord.db").exists()

    alone = BrokerProcess(tmp_path / "alone").start()
    assert alone.stop() == 0
    with pytest.raises(BrokerStartFailed, match="tidemill cluster migrate --data-dir"):
        new_member(tmp_path, zookeeper.address, 0, name="alone").start()


def test_a_ZooKeeper_that_does_not_answer_is_named_in_one_line(tmp_path):
    with pytest.raises(BrokerStartFailed, match=r"no ZooKeeper server answers at 127.0.0.1:1$"):
        new_member(tmp_path, "127.0.0.1:1", 0).start()
