"""Brokers that meet in a real ZooKeeper, each started by its own command, and stock clients."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.load import Load, read_logs
from tests.support.clients import DEADLINE_S, Confluent, Message
from tests.support.coroutines import run
from tests.support.relay import Relay
from tests.support.topics import create_replicated
from tests.support.waiting import wait_for_brokers, wait_until
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import ClientError
from tidemill.core.net import AsyncioNet
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess, BrokerStartFailed
from tidemill.testing.cluster_process import ClusterProcess
from tidemill.testing.zookeeper_process import ZookeeperProcess, is_available
from tidemill.wire.generated.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="needs Java and the jars of pyspark"),
]

SESSION_S = 4.0
"""A busy machine must not end it."""
PARTITIONS = 3
PAUSE_S = 0.2
IMPATIENT = {"request.timeout.ms": 3000, "socket.timeout.ms": 4000}
"""Producers that give up soon on a broker that stands still with their requests."""


class Members:
    """Three brokers; each may be killed and started again by itself."""

    def __init__(self, directory: Path, zookeeper: str, names: Sequence[str] = ("",) * 3) -> None:
        self.brokers = [
            new_member(directory, zookeeper, number, name) for number, name in enumerate(names)
        ]

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
        create_replicated(self.bootstrap, topic, partitions=PARTITIONS)
        return [(topic, index) for index in range(PARTITIONS)]

    async def leaders(self, topic: str, *, asked: int) -> set[int]:
        """Who leads, as one broker says: a stock client may ask another one."""
        host, _, port = self.brokers[asked].bootstrap.rpartition(":")
        net = AsyncioNet()
        connection = await BrokerConnection.open(net, host, int(port), timeout_s=DEADLINE_S)
        try:
            answer = await connection.request(
                MetadataRequest(topics=[MetadataRequestTopic(name=topic)]),
                MetadataResponse,
                timeout_s=DEADLINE_S,
            )
        finally:
            connection.close()
        return {partition.leader_id for partition in answer.topics[0].partitions}

    def answers(self, topic: str, *, asked: int) -> bool:
        """Whether this broker takes clients."""
        try:
            run(self.leaders(topic, asked=asked))
        except ClientError:
            return False
        return True

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


def check(load: Load, bootstrap: str, logs: list[tuple[str, int]]) -> None:
    """Everything acknowledged is there, where it was said to be."""
    load.finish()
    assert load.failures == []
    found = read_logs(bootstrap, logs)
    for one in load.acknowledged:
        assert found[one.log][one.offset] == one.value
    assert set(load.implied) <= {value for log in found.values() for value in log}


@pytest.fixture
def members(tmp_path: Path, zookeeper: ZookeeperProcess) -> Iterator[Members]:
    made = Members(tmp_path, zookeeper.address)
    yield made.start()
    made.stop()


@pytest.fixture
def new_load(members: Members) -> Iterator[Callable[[str], Load]]:
    """Starts producers on a new topic; at the end all that was acknowledged is there."""
    loads: list[tuple[Load, list[tuple[str, int]]]] = []

    def start(topic: str) -> Load:
        logs = members.create(topic)
        load = Load(members.bootstrap, logs, seed=1, pause_s=PAUSE_S, **IMPATIENT)
        loads.append((load, logs))
        return load.start()

    yield start
    for load, logs in loads:
        check(load, members.bootstrap, logs)


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
    run, members, new_load, topic
):
    load = new_load(topic)
    load.wait_acknowledged(200)
    stopped = members.brokers[1]
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_until(lambda: 1 not in run(members.leaders(topic, asked=0)), "it still leads")
    load.wait_acknowledged(200)
    os.kill(stopped.pid, signal.SIGCONT)
    wait_for_brokers(stopped.bootstrap, {0, 1, 2})
    load.wait_acknowledged(200)


def test_a_broker_that_is_cut_off_from_ZooKeeper_stops_leading_and_goes_on_when_it_is_back(
    run, tmp_path, zookeeper, topic
):
    relay = Relay(zookeeper.address)
    members = Members(tmp_path, zookeeper.address)
    members.brokers[1] = new_member(tmp_path, f"{relay.address}/tidemill", 1)
    try:
        logs = members.start().create(topic)
        load = Load(members.bootstrap, logs, seed=1, pause_s=PAUSE_S, **IMPATIENT).start()
        load.wait_acknowledged(200)
        relay.cut()
        wait_until(lambda: 1 not in run(members.leaders(topic, asked=0)), "it still leads")
        load.wait_acknowledged(500)  # in all partitions, also in those that it led
        # Who asks it alone is sent to others.
        wait_until(lambda: not members.answers(topic, asked=1), "it still answers")
        relay.mend()
        for broker in members.brokers:
            wait_for_brokers(broker.bootstrap, {0, 1, 2})
        load.wait_acknowledged(200)
        check(load, members.bootstrap, logs)
    finally:
        members.stop()
        relay.close()


def test_F97_producers_go_on_while_ZooKeeper_stands_still_and_after_it_has_ended_all_sessions(
    run, members, zookeeper, new_load, topic
):
    load = new_load(topic)
    load.wait_acknowledged(200)
    zookeeper.pause()
    over_at = time.monotonic() + 3 * SESSION_S
    while time.monotonic() < over_at:  # all leases have ended: followers vouch for their leaders
        load.wait_acknowledged(100)
    assert run(members.leaders(topic, asked=0)) == {0, 1, 2}
    zookeeper.resume()
    load.wait_acknowledged(500)
    for broker in members.brokers:
        wait_for_brokers(broker.bootstrap, {0, 1, 2})


def test_producers_go_on_when_ZooKeeper_is_back(members, zookeeper, new_load, topic):
    load = new_load(topic)
    load.wait_acknowledged(200)
    zookeeper.kill()
    zookeeper.start()
    load.wait_acknowledged(500)
    members.create(f"{topic}-later")


def test_a_clean_stop_hands_over_and_a_restart_finds_everything(members, topic):
    members.create(topic)
    messages = [Message(b"%d" % number, partition=number % PARTITIONS) for number in range(300)]
    Confluent().produce(members.bootstrap, topic, messages)
    for broker in members.brokers:
        assert broker.stop() == 0
        broker.start()
    assert _values(members.bootstrap, topic, PARTITIONS) == sorted(
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
    with pytest.raises(BrokerStartFailed, match="has no cluster, this broker belongs to cluster"):
        new_member(tmp_path, f"{zookeeper.address}/two", 0).start()
    second = new_member(tmp_path, f"{zookeeper.address}/two", 1)
    second.start()
    assert second.stop() == 0
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


def _migrate(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TIDEMILL, "cluster", "migrate", *flags],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def _values(bootstrap: str, topic: str, partitions: int) -> list[bytes]:
    found = read_logs(bootstrap, [(topic, index) for index in range(partitions)])
    return sorted(value for log in found.values() for value in log)


def test_a_broker_moves_to_ZooKeeper_and_back_with_all_that_it_has(tmp_path, zookeeper, topic):
    data = str(tmp_path / "data")
    alone = BrokerProcess(tmp_path / "data").start()
    Confluent().produce(alone.bootstrap, topic, [Message(b"before")])
    running = _migrate("--data-dir", data, "--zookeeper", zookeeper.address)
    assert (running.returncode, "stop all brokers first" in running.stderr) == (2, True)
    assert alone.stop() == 0

    moved = _migrate("--data-dir", data, "--zookeeper", zookeeper.address)
    assert moved.returncode == 0, moved.stderr
    assert f"--broker-id 0 --data-dir {data}" in moved.stdout
    assert "already" in _migrate("--data-dir", data, "--zookeeper", zookeeper.address).stdout
    member = new_member(tmp_path, zookeeper.address, 0, name="data").start()
    Confluent().produce(member.bootstrap, topic, [Message(b"there")])
    running = _migrate("--data-dir", data, "--back")
    assert "stop all brokers first" in running.stderr
    assert member.stop() == 0

    back = _migrate("--data-dir", data, "--back")
    assert back.returncode == 0, back.stderr
    assert "already" in _migrate("--data-dir", data, "--back").stdout
    with pytest.raises(BrokerStartFailed, match="tidemill cluster migrate"):
        new_member(tmp_path, zookeeper.address, 0, name="data").start()
    alone = BrokerProcess(tmp_path / "data").start()
    assert _values(alone.bootstrap, topic, 4) == [b"before", b"there"]
    assert alone.stop() == 0


def test_three_brokers_of_one_host_move_to_ZooKeeper(tmp_path, zookeeper, topic):
    data = tmp_path / "data"
    cluster = ClusterProcess(data, brokers=3).start()
    create_replicated(cluster.bootstrap, topic, partitions=PARTITIONS)
    messages = [Message(b"%d" % number, partition=number % PARTITIONS) for number in range(300)]
    Confluent().produce(cluster.bootstrap, topic, messages)
    assert cluster.stop() == 0

    moved = _migrate("--data-dir", str(data), "--zookeeper", zookeeper.address)
    assert moved.returncode == 0, moved.stderr
    members = Members(tmp_path, zookeeper.address, ["data", "data/broker-1", "data/broker-2"])
    try:
        members.start()
        assert _values(members.bootstrap, topic, PARTITIONS) == sorted(
            message.value for message in messages
        )
        refused = _migrate("--data-dir", str(data / "broker-1"), "--back")
        assert refused.returncode == 2
    finally:
        members.stop()


def test_a_move_that_ended_between_store_and_directories_is_ended_by_the_next(
    tmp_path, zookeeper, topic
):
    data = tmp_path / "data"
    alone = BrokerProcess(data).start()
    Confluent().produce(alone.bootstrap, topic, [Message(b"kept")])
    assert alone.stop() == 0
    to_zookeeper = ("--data-dir", str(data), "--zookeeper", zookeeper.address)
    assert _migrate(*to_zookeeper).returncode == 0
    for note in ("written", "missing"):
        (data / "coord.db.migrated").rename(data / "coord.db")
        if note == "missing":
            (data / "store").unlink()
            with pytest.raises(BrokerStartFailed, match="`tidemill cluster migrate`, run again"):
                BrokerProcess(data).start()
        assert "is in ZooKeeper now" in _migrate(*to_zookeeper).stdout
        assert not (data / "coord.db").exists()

    note = (data / "store").read_text()
    assert _migrate("--data-dir", str(data), "--back").returncode == 0
    (data / "store").write_text(note)
    with pytest.raises(BrokerStartFailed, match="start it with --zookeeper"):
        BrokerProcess(data).start()
    with pytest.raises(BrokerStartFailed, match="`tidemill cluster migrate`, run again"):
        new_member(tmp_path, zookeeper.address, 0, name="data").start()
    assert "coord.db now" in _migrate("--data-dir", str(data), "--back").stdout
    alone = BrokerProcess(data).start()
    assert _values(alone.bootstrap, topic, 4) == [b"kept"]
    assert alone.stop() == 0
