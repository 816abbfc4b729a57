"""Brokers that fail one after the other, stop, are replaced or come back as zombies, under load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster_stores import BROKERS, SeveralHosts
from tests.e2e.cluster_work import Work
from tests.e2e.commands import printed_by, run_tidemill
from tests.e2e.load import Log
from tests.support.batches import batch
from tests.support.clients import DEADLINE_S
from tests.support.topics import create_replicated, partitions_of, wait_in_sync, wait_replicas
from tests.support.waiting import wait_for_brokers, wait_until
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.core.errors import ErrorCode
from tidemill.core.net import AsyncioNet
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ZOMBIE = 1
LAST_WITH_NAMES = 12
"""A version of Produce that names topics; later ones have their ids."""
OLDER_TIDEMILL = """
from tidemill.broker.broker import Broker
from tidemill.cli.main import main
from tidemill.metadata.features.feature_levels import OLDER_SOFTWARE
Broker.__init__.__kwdefaults__["software"] = OLDER_SOFTWARE
main()
"""
"""The command with brokers that say that they run the software before this one."""


def leader_besides(bootstrap: str, topic: str, former: int) -> int:
    """Wait until partition 0 has another leader than this one."""
    found: list[int] = []

    def is_there() -> bool:
        found.append(partitions_of(bootstrap, topic)[0].leader)
        return found[-1] not in (former, -1)

    wait_until(is_there, f"{topic}-0 has no leader besides {former}")
    return found[-1]


def test_F81_I1_I28_a_new_leader_that_is_killed_as_soon_as_it_is_named_loses_nothing(
    store, work, topic
):
    for _ in range(2):
        first = partitions_of(store.bootstrap, topic)[0].leader
        store.kill(first)
        second = leader_besides(store.bootstrap, topic, first)
        store.kill(second)
        for broker_id in (first, second):
            store.bring_back(broker_id)
        work.goes_on()
        wait_in_sync(store.bootstrap, topic, set(range(BROKERS)))
    work.check()


def test_I1_I28_the_last_replica_in_sync_is_killed_too_and_returns_last(hosts, topic):
    with Work(hosts.bootstrap, topic) as work:
        last = partitions_of(hosts.bootstrap, topic)[0].leader
        others = [one for one in range(BROKERS) if one != last]
        for broker_id in others:
            hosts.kill(broker_id)
        wait_in_sync(hosts.brokers[last].bootstrap, topic, {last})
        hosts.kill(last)
        for broker_id in others:
            hosts.brokers[broker_id].spawn()
        for broker_id in others:
            hosts.brokers[broker_id].wait_ready()
            wait_for_brokers(hosts.brokers[broker_id].bootstrap, set(others))
        hosts.bring_back(last)
        work.goes_on()
        wait_in_sync(hosts.bootstrap, topic, set(range(BROKERS)))
        work.check()


def test_I1_I28_a_rolling_upgrade_loses_nothing_and_raises_no_level_before_its_end(
    tmp_path, zookeeper, topic
):
    older = (sys.executable, "-c", OLDER_TIDEMILL)
    hosts = SeveralHosts(tmp_path, zookeeper.address, commands=dict.fromkeys(range(BROKERS), older))
    newer = SeveralHosts(tmp_path, zookeeper.address)
    try:
        with Work(hosts.start().bootstrap, topic) as work:
            for broker_id in range(BROKERS):
                refused = run_tidemill(hosts.bootstrap, "cluster", "features", "upgrade")
                assert "tidemill.version" not in refused.stdout
                assert hosts.brokers[broker_id].stop() == 0
                work.goes_on()
                newer.brokers[broker_id].bootstrap = hosts.brokers[broker_id].bootstrap
                newer.bring_back(broker_id)
                wait_in_sync(hosts.bootstrap, topic, set(range(BROKERS)))
                work.goes_on()
            raised = printed_by(newer.bootstrap, "cluster", "features", "upgrade")
            assert "tidemill.version went from 1 to 2" in raised
            work.goes_on()
            work.check()
    finally:
        hosts.stop()
        newer.stop()


def is_written(data_dir: Path, value: bytes) -> bool:
    """Whether it is in any log of this broker."""
    return any(value in path.read_bytes() for path in data_dir.glob("logs/*/*.log"))


def send_to(
    connection: BrokerConnection, log: Log, value: bytes
) -> asyncio.Future[ProduceResponse]:
    """Send a record with acks=1, whoever leads; returns when it is in the connection."""
    data = PartitionProduceData(index=log[1], records=batch(0, value=value))
    request = ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=log[0], partition_data=[data])]
    )
    return connection.request_nowait(
        request, ProduceResponse, timeout_s=DEADLINE_S, version=LAST_WITH_NAMES
    )


def error_in(answer: ProduceResponse) -> ErrorCode:
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def test_I15_a_former_leader_that_goes_on_after_its_session_appends_nothing(run, hosts, topic):
    async def scenario() -> None:
        found = partitions_of(hosts.bootstrap, topic)
        log = next((topic, index) for index, one in found.items() if one.leader == ZOMBIE)
        zombie = hosts.brokers[ZOMBIE]
        host, _, port = zombie.bootstrap.rpartition(":")
        connection = await BrokerConnection.open(
            AsyncioNet(), host, int(port), timeout_s=DEADLINE_S
        )
        os.kill(zombie.pid, signal.SIGSTOP)
        try:
            wait_until(
                lambda: partitions_of(hosts.without(ZOMBIE), topic)[log[1]].leader != ZOMBIE,
                "it still leads",
            )
            waiting = send_to(connection, log, b"waiting")
        finally:
            os.kill(zombie.pid, signal.SIGCONT)
        assert error_in(await waiting) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        later = await send_to(connection, log, b"later")
        assert error_in(later) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        connection.close()

    with Work(hosts.bootstrap, topic) as work:
        run(scenario())
        work.goes_on()
        wait_in_sync(hosts.bootstrap, topic, set(range(BROKERS)))
        work.check()
    for broker in hosts.brokers:
        assert not is_written(broker.data_dir, b"waiting")
        assert not is_written(broker.data_dir, b"later")
        assert is_written(broker.data_dir, b"0:1")


def test_F101_I1_I28_the_replicas_of_a_broker_that_does_not_return_are_made_elsewhere(
    tmp_path, zookeeper, topic
):
    settings = "replica.remake.delay.ms=1000", f"offsets.topic.num.partitions={BROKERS}"
    hosts = SeveralHosts(tmp_path, zookeeper.address, *settings, count=BROKERS + 1)
    try:
        with Work(hosts.start().bootstrap, topic) as work:
            gone = partitions_of(hosts.bootstrap, topic)[0].leader
            hosts.kill(gone)
            others = hosts.without(gone)
            for name in (topic, "__consumer_offsets"):
                wait_replicas(others, name, set(range(BROKERS + 1)) - {gone})
            work.goes_on()
            work.check()
    finally:
        hosts.stop()


def test_F99_a_command_for_the_controller_goes_on_with_the_next_one_when_it_has_just_died(
    hosts, topic
):
    create_replicated(hosts.bootstrap, topic, partitions=BROKERS)
    facts = json.loads(printed_by(hosts.bootstrap, "cluster", "describe", "--json"))
    controller = int(facts["controller"])
    others = set(range(BROKERS)) - {controller}
    hosts.kill(controller)
    target = ",".join(map(str, sorted(others)))
    printed_by(hosts.bootstrap, "cluster", "reassign", topic, "--brokers", target)
    wait_replicas(hosts.without(controller), topic, others)
