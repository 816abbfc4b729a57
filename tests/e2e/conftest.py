"""Broker processes: shared ones, and one per test for tests that kill it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.clients import CLIENTS, Client
from tidemill.testing.broker_process import BrokerProcess


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
def topic() -> str:
    """A name that no other test uses."""
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    """Each stock client in turn."""
    chosen: Client = request.param
    return chosen
