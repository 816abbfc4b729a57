"""Brokers on a ZooKeeper of three servers, which fail under producers and groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster_stores import SESSION_S, SeveralHosts
from tests.e2e.cluster_work import Work
from tests.support.waiting import wait_until
from tidemill.testing.zookeeper_process import ZookeeperEnsemble, ZookeeperProcess, is_available

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="needs Java and the jars of pyspark"),
]

QUORUM_LOST_S = 3 * SESSION_S
"""All leases have ended long before, and ZooKeeper ends all sessions when it is back."""


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZookeeperEnsemble]:
    made = ZookeeperEnsemble(tmp_path / "zookeeper")
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def hosts(tmp_path: Path, ensemble: ZookeeperEnsemble) -> Iterator[SeveralHosts]:
    made = SeveralHosts(tmp_path, ensemble.address)
    try:
        yield made.start()
    finally:
        made.stop()


def leader_of(servers: list[ZookeeperProcess]) -> ZookeeperProcess:
    """Wait until one of them leads."""
    wait_until(lambda: any(one.is_leader() for one in servers), "no server leads")
    return next(one for one in servers if one.is_leader())


def test_F97_I1_I28_clients_and_groups_go_on_when_the_leader_of_the_ensemble_stands_still(
    ensemble, hosts, topic
):
    with Work(hosts.bootstrap, topic) as work:
        stopped = leader_of(ensemble.servers)
        stopped.pause()
        work.goes_on()
        leader_of([one for one in ensemble.servers if one is not stopped])
        work.goes_on()
        stopped.resume()
        hosts.wait_complete()
        work.goes_on()
        work.check()


def test_F97_I1_I28_clients_and_groups_go_on_without_a_quorum_and_after_all_sessions_have_ended(
    ensemble, hosts, topic
):
    with Work(hosts.bootstrap, topic) as work:
        lost = ensemble.servers[:2]
        for server in lost:
            server.kill()
        over_at = time.monotonic() + QUORUM_LOST_S
        while time.monotonic() < over_at:  # followers vouch for their leaders
            work.goes_on()
        for server in lost:
            server.spawn()
        for server in lost:
            server.wait_ready()
        work.goes_on()
        hosts.wait_complete()
        work.goes_on()
        work.check()
