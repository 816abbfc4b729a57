"""`tidemill up --brokers 3` as its users see it: stock clients, kill -9, growing, stopping."""

from __future__ import annotations

import json
import os
import re
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.e2e.commands import printed_by
from tests.e2e.load import NOT_YET, read_logs
from tests.support.clients import DEADLINE_S, Confluent, Message
from tests.support.topics import create_replicated, create_topic
from tests.support.waiting import wait_for_brokers, wait_until
from tidemill.testing.broker_process import BrokerProcess
from tidemill.testing.cluster_process import ClusterProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

UNCLEAN = "the last end was not clean"


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[..., ClusterProcess]]:
    """Starts a cluster on the test's directory; whatever still runs is stopped at the end."""
    started: list[ClusterProcess] = []

    def start(*settings: str, brokers: int = 3) -> ClusterProcess:
        cluster = ClusterProcess(tmp_path / "data", *settings, brokers=brokers)
        started.append(cluster)
        return _start(cluster, brokers)

    yield start
    for cluster in started:
        cluster.stop()


def _start(cluster: ClusterProcess, brokers: int = 3) -> ClusterProcess:
    """Start it, and wait until every broker has heard of all: ready means that each serves."""
    cluster.start()
    for address in cluster.addresses:
        wait_for_brokers(address, set(range(brokers)))
    return cluster


def _produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """All are acknowledged with acks=all when this returns."""
    messages = [Message(value, partition=n % 3) for n, value in enumerate(values)]
    Confluent().produce(bootstrap, topic, messages)


def _read(bootstrap: str, topic: str, partitions: int = 3) -> list[bytes]:
    logs = read_logs(bootstrap, [(topic, index) for index in range(partitions)])
    return sorted(value for log in logs.values() for value in log)


def _wait_until_readable(bootstrap: str, topic: str) -> None:
    """Leaders are elected a moment after all brokers are there.

    After an unclean end of all they first wait for a second replica (KIP-207).
    """
    for index in range(3):
        place = confluent_kafka.TopicPartition(topic, index)
        wait_until(
            partial(_is_readable, bootstrap, place), f"{topic}-{index} does not become readable"
        )


def _is_readable(bootstrap: str, asked: confluent_kafka.TopicPartition) -> bool:
    consumer = Confluent().consumer(bootstrap)  # a new one: librdkafka keeps that nobody leads
    try:
        return consumer.get_watermark_offsets(asked, DEADLINE_S) is not None
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() not in NOT_YET:
            raise
        return False
    finally:
        consumer.close()


def _values(name: str) -> list[bytes]:
    return sorted(b"%s %04d" % (name.encode(), n) for n in range(600))


def test_F131_three_brokers_are_one_cluster_and_keep_what_they_acknowledged(new_cluster, topic):
    cluster = new_cluster()
    for address in cluster.addresses:
        wait_for_brokers(address, {0, 1, 2})
    create_replicated(cluster.bootstrap, topic, partitions=3)
    _produce(cluster.bootstrap, topic, _values("a"))

    killed = cluster.broker_pid(1)
    cluster.kill_broker(1)
    cluster.wait_log(r"^\[supervisor\] broker 1 ended with SIGKILL; starting it again")
    cluster.wait_log(r"^\[supervisor\] broker 1 is ready again")
    assert cluster.broker_pid(1) != killed
    cluster.wait_log(rf"^\[broker 1\] .*{UNCLEAN}")
    wait_for_brokers(cluster.addresses[1], {0, 1, 2})
    _produce(cluster.bootstrap, topic, _values("b"))

    assert _read(cluster.bootstrap, topic) == _values("a") + _values("b")


def test_a_broker_that_stands_still_is_ended_by_another_and_started_again(new_cluster):
    cluster = new_cluster()
    os.kill(cluster.broker_pid(2), signal.SIGSTOP)
    cluster.wait_log(r"^\[supervisor\] broker 2 ended with SIGKILL; starting it again")
    cluster.wait_log(r"^\[supervisor\] broker 2 is ready again")


def test_no_broker_outlives_a_killed_supervisor_and_nothing_acknowledged_is_lost(
    new_cluster, topic
):
    cluster = new_cluster()
    create_replicated(cluster.bootstrap, topic, partitions=3)
    _produce(cluster.bootstrap, topic, _values("a"))
    with ExitStack() as stack:
        brokers = [os.pidfd_open(cluster.broker_pid(broker_id)) for broker_id in range(3)]
        for descriptor in brokers:
            stack.callback(os.close, descriptor)
        cluster.kill()
        for descriptor in brokers:  # readable: the process has ended
            assert select.select([descriptor], [], [], DEADLINE_S)[0] == [descriptor]

    _start(cluster)  # ports, locks and sessions are free at once
    _wait_until_readable(cluster.bootstrap, topic)
    assert _read(cluster.bootstrap, topic) == _values("a")


def test_one_broker_grows_to_three_on_its_directory_with_all_that_it_has(
    tmp_path, new_cluster, topic
):
    alone = BrokerProcess(tmp_path / "data").start()
    create_topic(alone.bootstrap, topic, 3)
    _produce(alone.bootstrap, topic, _values("old"))
    before = sorted(path.name for path in (tmp_path / "data" / "logs").iterdir())
    assert alone.stop() == 0

    cluster = new_cluster("log.retention.check.interval.ms=20", "log.cleaner.backoff.ms=20")
    _wait_until_readable(cluster.bootstrap, topic)
    assert _read(cluster.bootstrap, topic) == _values("old")
    _produce(cluster.bootstrap, topic, _values("new"))
    create_replicated(cluster.bootstrap, f"{topic}-2", partitions=3)
    _produce(cluster.bootstrap, f"{topic}-2", _values("both"))

    assert _read(cluster.bootstrap, topic) == _values("new") + _values("old")
    assert cluster.stop() == 0
    assert UNCLEAN not in cluster.log()
    assert set(before) <= {path.name for path in (tmp_path / "data" / "logs").iterdir()}
    for broker_id in (1, 2):  # nothing of broker 0 has touched what lies in its directory
        logs = tmp_path / "data" / f"broker-{broker_id}" / "logs"
        assert {f"{topic}-2-{index}" for index in range(3)} <= {one.name for one in logs.iterdir()}


def test_SIGTERM_ends_all_brokers_cleanly_and_they_come_back(new_cluster, topic):
    cluster = new_cluster()
    create_replicated(cluster.bootstrap, topic, partitions=3)
    _produce(cluster.bootstrap, topic, _values("a"))
    assert cluster.stop() == 0

    _start(cluster)
    assert UNCLEAN not in cluster.log()
    _wait_until_readable(cluster.bootstrap, topic)
    assert _read(cluster.bootstrap, topic) == _values("a")


def test_I14_one_of_three_brokers_acknowledges_nothing_that_needs_two_copies(
    tmp_path, new_cluster, topic
):
    cluster = new_cluster()
    create_replicated(cluster.bootstrap, topic)
    assert _outcome(cluster.bootstrap, topic) is None
    assert cluster.stop() == 0

    alone = BrokerProcess(tmp_path / "data").start()
    try:
        _wait_until_in_sync(alone.bootstrap, topic, {0})
        refused = _outcome(alone.bootstrap, topic)
    finally:
        alone.stop()
    assert refused is not None
    assert refused.name() == "NOT_ENOUGH_REPLICAS"


def _outcome(bootstrap: str, topic: str) -> confluent_kafka.KafkaError | None:
    """Of a record that is sent once with acks=all."""
    outcomes: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "message.send.max.retries": 0}
    )
    producer.produce(topic, b"x", on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(DEADLINE_S) == 0
    (outcome,) = outcomes
    return outcome


def _wait_until_in_sync(bootstrap: str, topic: str, wanted: set[int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def are_in_sync() -> bool:
        (partition,) = (
            admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions.values()
        )
        return set(partition.isrs) == wanted

    wait_until(are_in_sync, f"not {wanted} get in sync for {topic}")


def test_a_port_in_use_ends_all_with_one_line_that_says_what_to_do(tmp_path, new_broker):
    taken = new_broker().bootstrap
    cluster = ClusterProcess(tmp_path / "other", f"tidemill.internal.listen={taken}")
    with pytest.raises(Exception, match="did not come"):
        cluster.start()
    # The next ports may be taken as well, so another one may end first.
    assert re.search(r"^\[broker \d\] error: cannot listen on ", cluster.log(), re.MULTILINE)
    assert re.search(r"broker \d ended with exit code 2: mend what its last line", cluster.log())
    assert cluster.stop() == 1


def _cluster_command(cluster: ClusterProcess, *args: str) -> str:
    return printed_by(cluster.bootstrap, "cluster", *args)


def test_leaderships_that_moved_with_a_death_are_seen_and_given_back(new_cluster):
    cluster = new_cluster()
    create_replicated(cluster.bootstrap, "t", partitions=3)
    cluster.kill_broker(1)
    cluster.wait_log(r"broker 1 is ready again")
    facts: dict[str, Any] = {}

    def are_back() -> bool:
        facts.update(json.loads(_cluster_command(cluster, "describe", "--json")))
        return not facts["under_replicated"] and len(facts["brokers"]) == 3

    wait_until(are_back, "not all replicas are in sync")
    assert facts["offline"] == []
    assert facts["not_preferred"]
    assert "t-" in _cluster_command(cluster, "elect", "preferred")
    facts = json.loads(_cluster_command(cluster, "describe", "--json"))
    assert [one for one in facts["not_preferred"] if one.startswith("t-")] == []
    assert "controller" in _cluster_command(cluster, "describe")
