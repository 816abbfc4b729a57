"""One ZooKeeper server for all contract tests of a run; each test has its own chroot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from tests.support.zookeeper import new_coord
from tidemill.metadata.store.zookeeper_store import ZookeeperCoord
from tidemill.testing.zookeeper_process import ZookeeperProcess, is_available


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperProcess]:
    if not is_available():
        pytest.skip("needs Java, and the jars that pyspark brings (make setup-spark)")
    server = ZookeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    yield server.start()
    server.stop()


@pytest.fixture
def chroot() -> str:
    """A place that no other test uses."""
    return f"/test-{uuid4().hex[:12]}"


@pytest.fixture
def zookeeper_coord(zookeeper: ZookeeperProcess, chroot: str) -> Callable[[], ZookeeperCoord]:
    """Makes sessions with the same store."""
    return lambda: new_coord(f"{zookeeper.address}{chroot}")
