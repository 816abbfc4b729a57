"""`tidemill cluster repair`: a broker with an old copy of its disk leads; a follower refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.commands import printed_by
from tests.e2e.load import read_logs
from tests.support.clients import DEADLINE_S, Confluent, Message
from tests.support.waiting import wait_for_brokers, wait_until
from tidemill.core.ids import TopicPartition
from tidemill.storage.directory.checkpoint import read_newest
from tidemill.storage.files.disk import OsDisk
from tidemill.testing.cluster_process import ClusterProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LEADER, FOLLOWER = 1, 2


def _repair(cluster: ClusterProcess, *arguments: str) -> str:
    return printed_by(cluster.bootstrap, "cluster", "repair", *arguments)


def _describe_refusal(cluster: ClusterProcess) -> str:
    """What describe says once the replica that refuses is out of sync."""
    shown = ""

    def is_refused() -> bool:
        nonlocal shown
        shown = printed_by(cluster.bootstrap, "cluster", "describe")
        return "refuses to follow" in shown

    wait_until(is_refused, "no replica refuses to follow")
    return shown


def _wait_led(cluster: ClusterProcess, topic: str) -> None:
    """Until all brokers are there, both replicas are in sync, and broker 1 leads."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def is_led() -> bool:
        seen = admin.list_topics(topic, timeout=DEADLINE_S)
        partitions = seen.topics[topic].partitions
        if not partitions or len(partitions[0].isrs) < 2 or len(seen.brokers) < 3:
            return False
        if partitions[0].leader != LEADER:
            printed_by(cluster.bootstrap, "cluster", "elect", "preferred")
        return bool(partitions[0].leader == LEADER)

    wait_until(is_led, f"{topic} is not led by broker {LEADER}, with two in sync")


def _create(cluster: ClusterProcess, topic: str) -> None:
    wait_for_brokers(cluster.bootstrap, {0, 1, 2})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(topic, 1, replica_assignment=[[LEADER, FOLLOWER]])
    (made,) = admin.create_topics([new]).values()
    made.result(DEADLINE_S)


def _produce(cluster: ClusterProcess, topic: str, values: range) -> None:
    messages = [Message(b"%d" % value, partition=0) for value in values]
    Confluent().produce(cluster.bootstrap, topic, messages)


def _stop_informed(cluster: ClusterProcess, follower: Path, partition: TopicPartition) -> None:
    """Stop with a follower that knows of 100 committed records, and keeps that.

    It hears of them with the fetch after the one that brought them. A stop may come in between,
    and the metadata names it in sync before its first fetch after a start.
    """
    deadline = monotonic() + DEADLINE_S
    while True:
        assert cluster.stop() == 0
        if read_newest(OsDisk(), str(follower)).entries[partition].high_watermark == 100:
            return
        assert monotonic() < deadline, "the follower does not hear of the high watermark"
        cluster.start()
        _wait_led(cluster, topic=partition.topic)


def _kill_at_once(cluster: ClusterProcess) -> None:
    """End all brokers: none of them sees another one die, nobody hands over or takes over."""
    pids = [cluster.broker_pid(broker_id) for broker_id in range(3)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    cluster.kill()  # the kernel ends the brokers with it
    wait_until(lambda: not any(Path(f"/proc/{pid}/fd").exists() for pid in pids), f"{pids} run on")


@pytest.fixture
def torn(tmp_path: Path, topic: str) -> Iterator[ClusterProcess]:
    """Broker 1 leads with 50 of the 100 records that were acknowledged."""
    cluster = ClusterProcess(tmp_path / "data", "min.insync.replicas=1")
    own = tmp_path / "data" / f"broker-{LEADER}"
    cluster.start()
    _create(cluster, topic)
    _produce(cluster, topic, range(50))
    assert cluster.stop() == 0
    shutil.copytree(own, tmp_path / "copy")
    cluster.start()
    _wait_led(cluster, topic)
    _produce(cluster, topic, range(50, 100))
    _stop_informed(
        cluster, tmp_path / "data" / f"broker-{FOLLOWER}" / "logs", TopicPartition(topic, 0)
    )
    cluster.start()
    _wait_led(cluster, topic)
    _kill_at_once(cluster)
    shutil.rmtree(own)
    shutil.move(tmp_path / "copy", own)
    yield cluster.start()
    cluster.stop()


@pytest.mark.parametrize(("take", "kept"), [("leader", 50), ("own", 100)])
def test_I13_a_person_decides_whose_log_is_kept(torn, topic, take, kept):
    torn.wait_log(rf"^\[broker {FOLLOWER}\] .*{topic}.*refused, see `tidemill cluster repair`")
    assert f"{topic}-0 on broker {FOLLOWER} refuses to follow" in _describe_refusal(torn)
    shown = _repair(torn)
    assert f"{topic}-0 on broker {FOLLOWER} is not replicated: from offset 50 on" in shown
    assert f"--take leader: broker {FOLLOWER} drops offsets 50 to 99" in shown
    (facts,) = json.loads(_repair(torn, "--json"))
    assert (facts["broker"], facts["leader"], facts["differ_from"]) == (FOLLOWER, LEADER, 50)
    assert (facts["committed"], facts["end"], facts["leader_end"]) == (100, 100, 50)

    chosen = [f"{topic}:0", "--broker", str(FOLLOWER), "--take", take]
    assert "drops" in _repair(torn, *chosen, "--dry-run")
    assert json.loads(_repair(torn, "--json")) == [facts]
    assert "is repaired" in _repair(torn, *chosen, "--yes")

    assert _repair(torn) == "no replica waits for a decision\n"
    (values,) = read_logs(torn.bootstrap, [(topic, 0)]).values()
    assert values == [b"%d" % value for value in range(kept)]
    _produce(torn, topic, range(kept, kept + 10))
