"""A cluster that grows, moves replicas and is drained, while stock clients work."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.e2e.load import Load, Log, read_logs
from tests.support.clients import DEADLINE_S, Confluent, Message, kafka
from tests.support.topics import create_topic
from tests.support.waiting import wait_until
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess
from tidemill.testing.cluster_process import ClusterProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PAUSE_S = 0.2

MIB = 2**20
THROTTLED = "replication.throttled.rate"
RATE = 3 * MIB
PARTITION_BYTES = 24 * MIB
UNBOUND_BYTES = 6 * MIB
"""Of each partition: until it is known to be far behind, and when it is not any more."""
LAST_ANSWER_BYTES = 8 * MIB
"""Of each leader: nobody waits after the last one."""


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[..., ClusterProcess]]:
    """Starts three brokers on the test's directory; they are stopped at the end."""
    started: list[ClusterProcess] = []

    def start(*settings: str) -> ClusterProcess:
        cluster = ClusterProcess(tmp_path / "data", *settings)
        started.append(cluster)
        cluster.start()
        wait_until(lambda: len(_facts(cluster)["brokers"]) == 3)
        return cluster

    yield start
    for cluster in started:
        cluster.stop()


def _tidemill(cluster: ClusterProcess, *arguments: str) -> str:
    """What a command printed; it must succeed."""
    ran = _run(cluster, *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _run(cluster: ClusterProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TIDEMILL, *arguments, "--bootstrap", cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def _facts(cluster: ClusterProcess) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(_tidemill(cluster, "cluster", "describe", "--json"))
    return facts


def _leads(cluster: ClusterProcess) -> list[int]:
    """How many partitions each broker leads."""
    return [row["leads"] for row in _facts(cluster)["brokers"]]


def _replicas(cluster: ClusterProcess, topic: str) -> dict[int, list[int]]:
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        (described,) = admin.describe_topics([topic])
    finally:
        admin.close()
    return {one["partition_index"]: one["replica_nodes"] for one in described["partitions"]}


def _wait_replicas(
    cluster: ClusterProcess, topic: str, expected: Callable[[list[int]], bool]
) -> None:
    """Every partition's replicas are as expected; a broker may hear of a move after its end."""
    wait_until(lambda: all(map(expected, _replicas(cluster, topic).values())))


def _create(cluster: ClusterProcess, topic: str, replication: int, partitions: int = 3) -> None:
    _tidemill(
        cluster,
        *("topic", "create", topic, "--partitions", str(partitions)),
        *("--replication", str(replication)),
    )


def _check_complete(cluster: ClusterProcess, load: Load, logs: list[Log]) -> None:
    """Nothing acknowledged is lost, and nothing is there twice."""
    assert not load.failures
    read = read_logs(cluster.bootstrap, logs)
    for one in load.acknowledged:
        assert read[one.log][one.offset] == one.value
    twice = [value for log in logs for value, count in Counter(read[log]).items() if count > 1]
    assert not twice


def test_F100_one_broker_grows_to_three_and_its_topics_get_copies_everywhere(
    tmp_path, new_cluster, topic
):
    alone = BrokerProcess(tmp_path / "data").start()
    create_topic(alone.bootstrap, topic, 3)
    values = [b"%04d" % number for number in range(300)]
    messages = [Message(value, partition=n % 3) for n, value in enumerate(values)]
    Confluent().produce(alone.bootstrap, topic, messages)
    assert alone.stop() == 0

    cluster = new_cluster()
    _tidemill(cluster, "topic", "alter", topic, "--replication", "3")
    _wait_replicas(cluster, topic, lambda one: sorted(one) == [0, 1, 2])
    _tidemill(cluster, "cluster", "rebalance")
    wait_until(lambda: max(leads := _leads(cluster)) - min(leads) <= 1)

    cluster.kill_broker(0)
    cluster.wait_log(r"^\[supervisor\] broker 0 is ready again")
    logs = read_logs(cluster.bootstrap, [(topic, index) for index in range(3)])
    assert sorted(value for log in logs.values() for value in log) == values


@pytest.fixture
def fourth_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that joins the cluster of the test's directory when it is started."""
    store = f"tidemill.store.file={tmp_path / 'data' / 'coord.db'}"
    broker = BrokerProcess(
        tmp_path / "data" / "broker-3", "node.id=3", store, f"follower.{THROTTLED}={RATE}"
    )
    yield broker
    broker.stop()


def test_F100_a_fourth_broker_gets_its_share_within_the_throttle_while_producers_work(
    new_cluster, fourth_broker, topic
):
    cluster = new_cluster(f"leader.{THROTTLED}={RATE}")
    _create(cluster, topic, replication=2, partitions=4)
    size = MIB // 2
    values = [b"%0*d" % (size, n) for n in range(4 * PARTITION_BYTES // size)]
    messages = [Message(value, partition=n % 4) for n, value in enumerate(values)]
    Confluent().produce(cluster.bootstrap, topic, messages)
    logs = [(topic, index) for index in range(4)]
    load = Load(cluster.bootstrap, logs, seed=3, producers=1, pause_s=PAUSE_S).start()
    load.wait_acknowledged(200)

    began = monotonic()
    fourth_broker.start()
    load.wait_acknowledged(200)
    wait_until(lambda: _in_sync(cluster, 3) == 2, "it does not get its share")
    elapsed_s = monotonic() - began
    bound_bytes = 2 * (PARTITION_BYTES - UNBOUND_BYTES - LAST_ANSWER_BYTES)
    assert elapsed_s * RATE >= bound_bytes
    wait_until(lambda: not _facts(cluster)["moves"], "the moves do not end")
    assert [_in_sync(cluster, one) for one in range(4)] == [2, 2, 2, 2]

    load.wait_acknowledged(200)
    load.finish()
    _check_complete(cluster, load, logs)


def _in_sync(cluster: ClusterProcess, broker_id: int) -> int:
    """How many replicas this broker has that are in sync."""
    rows = _facts(cluster)["brokers"]
    return sum(row["in_sync"] for row in rows if row["broker"] == broker_id)


def test_F100_replicas_move_while_producers_work_and_nothing_is_lost_or_there_twice(
    new_cluster, topic
):
    cluster = new_cluster()
    _create(cluster, topic, replication=2)
    logs = [(topic, index) for index in range(3)]
    load = Load(cluster.bootstrap, logs, seed=1, producers=1, pause_s=PAUSE_S).start()
    load.wait_acknowledged(200)
    leader, follower = _replicas(cluster, topic)[0]
    (free,) = {0, 1, 2} - {leader, follower}
    target = f"{free},{follower}"
    _tidemill(cluster, "cluster", "reassign", f"{topic}:0", "--brokers", target)
    wait_until(lambda: _replicas(cluster, topic)[0] == [free, follower])
    _tidemill(cluster, "cluster", "reassign", topic, "--brokers", "0,1,2")
    load.wait_acknowledged(200)
    load.finish()
    _wait_replicas(cluster, topic, lambda one: sorted(one) == [0, 1, 2])
    _check_complete(cluster, load, logs)


def test_a_view_is_in_no_plan_and_follows_its_base(new_cluster, topic):
    cluster = new_cluster()
    _create(cluster, topic, replication=2)
    values = [b"%d" % number for number in range(6)]
    messages = [Message(value, partition=n % 3) for n, value in enumerate(values)]
    Confluent().produce(cluster.bootstrap, topic, messages)
    before = _facts(cluster)
    view = f"{topic}.all"
    _tidemill(cluster, "view", "create", view, "--of", topic)
    assert _facts(cluster) == before
    for command in (
        ("cluster", "reassign", view, "--brokers", "0"),
        ("cluster", "reassign", f"{view}:0", "--brokers", "0"),
        ("topic", "alter", view, "--replication", "3"),
    ):
        refused = _run(cluster, *command)
        assert refused.returncode != 0
        assert f"{view} is a view: move the replicas of {topic}" in refused.stderr
    _tidemill(cluster, "cluster", "drain", "2")
    _tidemill(cluster, "cluster", "drain", "2", "--cancel")
    plan = json.loads(_tidemill(cluster, "cluster", "rebalance", "--dry-run", "--json"))
    assert {move["topic"] for move in plan["moves"]} == {topic}
    assert sum(move["bytes"] for move in plan["moves"]) > 0
    _tidemill(cluster, "cluster", "rebalance")
    wait_until(lambda: _replicas(cluster, view) == _replicas(cluster, topic))
    shown = read_logs(cluster.bootstrap, [(view, index) for index in range(3)])
    assert sorted(value for log in shown.values() for value in log) == values


def test_F101_a_broker_is_drained_while_producers_work(new_cluster, topic):
    cluster = new_cluster()
    _create(cluster, topic, replication=2)
    logs = [(topic, index) for index in range(3)]
    load = Load(cluster.bootstrap, logs, seed=2, producers=1, pause_s=PAUSE_S).start()
    load.wait_acknowledged(200)
    plan = json.loads(_tidemill(cluster, "cluster", "drain", "2", "--dry-run", "--json"))
    assert {2}.isdisjoint(one for move in plan["moves"] for one in move["to"])
    _tidemill(cluster, "cluster", "drain", "2")
    load.wait_acknowledged(200)
    load.finish()
    _wait_replicas(cluster, topic, lambda one: sorted(one) == [0, 1])
    wait_until(lambda: _facts(cluster)["brokers"][2]["replicas"] == 0)
    assert _facts(cluster)["draining"] == [2]
    _check_complete(cluster, load, logs)


@pytest.mark.interop
def test_a_stock_admin_client_moves_replicas_and_sees_them_move(new_cluster, topic):
    cluster = new_cluster()
    _create(cluster, topic, replication=1, partitions=1)
    ((_, (holder,)),) = _replicas(cluster, topic).items()
    others = [one for one in range(3) if one != holder]
    targets = cycle((others, [holder]))
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)

    def sees_a_move() -> bool:
        """A move may be over when the client asks: then it goes back."""
        target = next(targets)
        admin.alter_partition_reassignments({kafka.TopicPartition(topic, 0): target})
        seen = admin.list_partition_reassignments()
        wait_until(lambda: not admin.list_partition_reassignments())
        wait_until(lambda: _replicas(cluster, topic) == {0: target})
        return str(others) in str(seen)

    try:
        wait_until(sees_a_move)
    finally:
        admin.close()


def test_F82_leaderships_come_back_by_themselves_after_a_broker_was_killed(new_cluster, topic):
    cluster = new_cluster("leader.imbalance.check.interval.seconds=2")
    _create(cluster, topic, replication=3)
    cluster.kill_broker(0)
    cluster.wait_log(r"^\[supervisor\] broker 0 is ready again")
    wait_until(lambda: not _facts(cluster)["under_replicated"])
    wait_until(lambda: not _facts(cluster)["not_preferred"])


def test_F82_after_an_unclean_end_of_all_brokers_each_leads_its_share_again(new_cluster, topic):
    cluster = new_cluster("leader.imbalance.check.interval.seconds=2")
    _create(cluster, topic, replication=3)
    cluster.kill()
    cluster.start()
    wait_until(lambda: len(_facts(cluster)["brokers"]) == 3)
    wait_until(lambda: _leads(cluster) == [1, 1, 1])
    wait_until(lambda: not (facts := _facts(cluster))["offline"] and not facts["not_preferred"])
