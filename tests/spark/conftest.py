"""One Spark session and one broker for all tests; a JVM takes ten seconds to warm up."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.support.clients import DEADLINE_S
from tests.support.topics import create_topic
from tidemill.testing.broker_process import BrokerProcess
from tidemill.testing.embedded import RunningBroker, broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
TIMEOUT_S = 900
"""The longest test starts several JVMs one after the other and takes about a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them are slow; under xdist one worker runs them (tests/support/schedule.py)."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Real Spark on two cores."""
    if shutil.which("java") is None:
        missing = "java is missing (tools/setup_env java installs it on Debian)"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    from tidemill.spark import session

    made = session(
        "tests",
        master="local[2]",
        quiet=True,
        brief=True,
        settings={
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.log.level": "ERROR",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    yield made
    made.stop()


@pytest.fixture(scope="session")
def running() -> Iterator[RunningBroker]:
    """A broker in this process; each test uses its own topic, some with records of 2023."""
    with broker(num_partitions=1, log_retention_ms=-1) as started:
        yield started


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Brokers in separate processes, which a test may kill."""
    started: list[BrokerProcess] = []

    def start(*settings: str) -> BrokerProcess:
        made = BrokerProcess(tmp_path / f"data{len(started)}", *settings)
        started.append(made)
        return made.start()

    yield start
    for made in started:
        made.stop()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
def delete() -> Callable[[str, str], None]:
    """Deletes a topic and returns when it is gone."""

    def act(bootstrap: str, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics([topic])[topic].result(DEADLINE_S)

    return act


@pytest.fixture
def recreate(delete: Callable[[str, str], None]) -> Callable[[str, str], None]:
    """Deletes a topic and creates one of the same name."""

    def act(bootstrap: str, topic: str) -> None:
        delete(bootstrap, topic)
        create_topic(bootstrap, topic)

    return act


@pytest.fixture
def add_partitions() -> Callable[[str, str, int], None]:
    """Raises a topic's number of partitions."""

    def act(bootstrap: str, topic: str, count: int) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(DEADLINE_S)

    return act
