"""Broker processes: shared ones, and one or three per test for tests that kill them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.cluster_stores import BROKERS, OneHost, SeveralHosts, Store
from tests.e2e.cluster_work import Work
from tests.support.clients import CLIENTS, Client
from tests.support.waiting import wait_for_brokers
from tidemill.testing.broker_process import BrokerProcess
from tidemill.testing.zookeeper_process import ZookeeperProcess, is_available


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that all tests of a run share; each test uses its own topic."""
    broker = BrokerProcess(tmp_path_factory.mktemp("shared") / "data").start()
    yield broker
    _stop_blameless(broker)


@pytest.fixture(scope="session")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with quick groups: short sessions, no initial delay for more members."""
    broker = BrokerProcess(
        tmp_path_factory.mktemp("groups") / "data",
        "group.initial.rebalance.delay.ms=0",
        "group.min.session.timeout.ms=100",
        "group.consumer.session.timeout.ms=3000",
        "group.consumer.heartbeat.interval.ms=100",
    ).start()
    yield broker
    _stop_blameless(broker)


def _stop_blameless(broker: BrokerProcess) -> None:
    """No stock client broke a rule of the protocol, as this broker reads it (S7)."""
    assert broker.stop() == 0
    assert broker.connection_faults() == []


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts brokers that the test may kill."""
    started: list[BrokerProcess] = []

    def start(*settings: str) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / f"data{len(started)}", *settings)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZookeeperProcess]:
    if not is_available():
        pytest.skip("needs Java and the jars of pyspark")
    server = ZookeeperProcess(tmp_path / "zookeeper").start()
    yield server
    server.stop()


@pytest.fixture
def hosts(tmp_path: Path, zookeeper: ZookeeperProcess) -> Iterator[SeveralHosts]:
    """Three brokers that meet in ZooKeeper."""
    made = SeveralHosts(tmp_path, zookeeper.address)
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def one_host(tmp_path: Path) -> Iterator[OneHost]:
    """Three brokers under their supervisor."""
    made = OneHost(tmp_path)
    for address in made.bootstrap.split(","):
        wait_for_brokers(address, set(range(BROKERS)))
    yield made
    made.stop()


@pytest.fixture(params=["one_host", "hosts"])
def store(request: pytest.FixtureRequest) -> Store:
    """Three brokers, on each of the stores in turn."""
    made: Store = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def work(store: Store, topic: str) -> Iterator[Work]:
    """Producers and groups that have begun."""
    with Work(store.bootstrap, topic) as made:
        yield made


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """Each stock client in turn."""
    chosen: Client = request.param
    return chosen
