from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tests.unit.cli.invoke import tidemill
from tidemill.cli.cluster_commands import cluster_moves
from tidemill.client.admin.cluster_admin import ClusterSnapshot
from tidemill.client.admin.replica_admin import Reassignment
from tidemill.client.network.metadata_cache import BrokerInfo, PartitionInfo, TopicInfo
from tidemill.core.ids import ZERO_UUID, TopicPartition

MOVE = Reassignment(TopicPartition("orders", 0), (0, 1, 2), adding=(2,), removing=(0,))


class Cluster:
    """Brokers 0 to 2, and a topic on two of them; remembers what it is asked to change."""

    def __init__(self) -> None:
        self.partition = PartitionInfo(0, 0, 1, replicas=[0, 1], isr=[0, 1], offline_replicas=[])
        self.snapshot = ClusterSnapshot(
            "id",
            0,
            [BrokerInfo(one, "h", 1) for one in range(3)],
            [TopicInfo("orders", ZERO_UUID, False, {0: self.partition})],
        )
        self.changes: list[object] = []

    def move(self) -> None:
        """From now on the partition is on its way."""
        self.partition.replicas[:] = MOVE.replicas
        self.snapshot = replace(self.snapshot, moves=[MOVE])

    async def take(self, _client: object) -> ClusterSnapshot:
        return self.snapshot

    async def find_sizes(self, _client: object) -> dict[TopicPartition, int]:
        return {}

    async def list_moves(self, _client: object) -> Sequence[Reassignment]:
        return self.snapshot.moves

    async def reassign(
        self, _client: object, targets: Mapping[object, object]
    ) -> dict[object, object]:
        self.changes.append(dict(targets))
        return {}

    async def set_draining(self, _client: object, broker_id: int, *, is_draining: bool) -> None:
        self.changes.append((broker_id, is_draining))


@pytest.fixture(autouse=True)
def cluster(monkeypatch, run):
    made = Cluster()
    monkeypatch.setattr(cluster_moves, "take_cluster_snapshot", made.take)
    monkeypatch.setattr(cluster_moves, "find_log_sizes", made.find_sizes)
    monkeypatch.setattr(cluster_moves, "list_reassignments", made.list_moves)
    monkeypatch.setattr(cluster_moves, "reassign", made.reassign)
    monkeypatch.setattr(cluster_moves, "set_draining", made.set_draining)
    monkeypatch.setattr(cluster_moves, "run_client", lambda _bootstrap, work: run(work(None)))
    return made


@pytest.mark.parametrize("flags", [[], ["--dry-run"], ["--cancel"]])
def test_a_broker_that_is_not_there_cannot_be_drained(flags):
    result = tidemill("cluster", "drain", "9", *flags)
    assert result.exit_code == 2
    assert "broker 9 is not there, only 0, 1, 2: start it" in result.stderr


@pytest.mark.parametrize("name", ["order", "orders:7"])
def test_a_topic_or_partition_that_there_is_not_is_named_as_it_was_typed(name):
    result = tidemill("cluster", "reassign", name, "--brokers", "1,0", "--dry-run")
    assert result.exit_code == 1
    assert f"there is no {name}; `tidemill topic list`" in result.stderr


def test_a_dry_run_takes_no_move_and_no_drain_back(cluster):
    cluster.move()
    cluster.snapshot = replace(cluster.snapshot, draining=frozenset({0}))
    shown = tidemill("cluster", "reassign", "orders", "--cancel", "--dry-run")
    assert shown.stdout.splitlines()[1].split() == ["orders-0", "1", "2", "0", "1", "0", "B"]
    told = tidemill("cluster", "drain", "0", "--cancel", "--dry-run")
    assert told.stdout == "broker 0 would be given replicas again\n"
    assert cluster.changes == []


def test_moves_that_are_taken_back_are_told(cluster):
    cluster.move()
    result = tidemill("cluster", "reassign", "orders:0", "--cancel", "--json")
    back = {"topic": "orders", "partition": 0, "from": [1, 2], "to": [0, 1], "bytes": 0}
    assert json.loads(result.stdout) == {"moves": [back], "done": True}
    assert cluster.changes == [{TopicPartition("orders", 0): None}]


def test_a_broker_that_is_not_drained_needs_nothing_to_be_taken_back(cluster):
    result = tidemill("cluster", "drain", "1", "--cancel")
    assert (result.exit_code, result.stdout) == (0, "broker 1 is not being drained\n")
    assert cluster.changes == []
    cluster.snapshot = replace(cluster.snapshot, draining=frozenset({1}))
    assert tidemill("cluster", "drain", "1", "--cancel").stdout == (
        "broker 1 is given replicas again\n"
    )
    assert cluster.changes == [(1, False)]


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("brokers", "line"),
    [
        ("1,9", "broker 9 takes no replicas now, only 0, 1: start it"),
        ("1,2", "broker 2 is being drained; `tidemill cluster drain 2 --cancel` stops that"),
        ("1,1", "--brokers: name each broker once"),
        ("1,,0", "--brokers 1,,0: expected ids, as in 1,2,3"),
        ("2147483648", "--brokers 2147483648: expected ids"),
        ("9" * 5_000, "--brokers 9"),
    ],
)
def test_a_plan_that_the_controller_would_refuse_is_none(cluster, brokers, line, flags):
    cluster.snapshot = replace(cluster.snapshot, draining=frozenset({2}))
    result = tidemill("cluster", "reassign", "orders", "--brokers", brokers, *flags)
    assert result.exit_code == 2
    assert line in result.stderr
    assert cluster.changes == []


def test_a_partition_that_is_typed_as_it_is_shown_is_recognised():
    result = tidemill("cluster", "reassign", "orders-0", "--brokers", "1,0", "--dry-run")
    assert "there is no topic orders-0, but orders:0; " in result.stderr


def test_rebalance_takes_no_rack_from_a_partition_that_a_drained_broker_holds(cluster):
    for index in range(6):
        held = PartitionInfo(index, 0, 1, replicas=[0, 1], isr=[0, 1], offline_replicas=[])
        cluster.snapshot.topics[0].partitions[index] = held
    brokers = [BrokerInfo(one, "h", 1, rack=rack) for one, rack in enumerate("abb")]
    cluster.snapshot = replace(cluster.snapshot, brokers=brokers, draining=frozenset({1}))
    result = tidemill("cluster", "rebalance", "--dry-run")
    assert result.stdout == "nothing to move\n"


@pytest.mark.parametrize(
    ("replicas", "leader"), [([0, 9], 0), ([0, 1], -1)], ids=["lacks a replica", "no leader"]
)
def test_rebalance_leaves_out_what_could_not_be_moved_to_the_end(cluster, replicas, leader):
    for index in range(6):
        stuck = PartitionInfo(index, leader, 1, replicas, isr=[0], offline_replicas=[])
        cluster.snapshot.topics[0].partitions[index] = stuck
    result = tidemill("cluster", "rebalance")
    assert result.stdout == "nothing to move\n"
    assert result.stderr.startswith("left out: 6 partitions")


def test_rebalance_leaves_out_what_is_being_moved(cluster):
    cluster.move()
    result = tidemill("cluster", "rebalance", "--dry-run")
    assert result.stdout == "nothing to move\n"
    assert result.stderr.startswith("left out: 1 partitions")


@pytest.mark.parametrize(
    "arguments",
    [
        ["rebalance"],
        ["reassign", "orders", "--brokers", "0,1"],
        ["reassign", "orders", "--cancel"],
    ],
)
def test_what_is_as_wanted_already_is_done(arguments):
    said = json.loads(tidemill("cluster", *arguments, "--json").stdout)
    assert said == {"moves": [], "done": True}
    dry = json.loads(tidemill("cluster", *arguments, "--json", "--dry-run").stdout)
    assert dry == {"moves": [], "done": False}


def test_a_partition_that_is_named_twice_is_moved_once():
    result = tidemill(
        "cluster", "reassign", "orders:0", "orders", "--brokers", "1,2", "--dry-run", "--json"
    )
    (move,) = json.loads(result.stdout)["moves"]
    assert move["to"] == [1, 2]
