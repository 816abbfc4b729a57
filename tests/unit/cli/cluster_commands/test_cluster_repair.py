from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.unit.cli.invoke import tidemill
from tidemill.cli.cluster_commands import cluster_repair
from tidemill.client.admin.repair_admin import LogConflict
from tidemill.client.network.metadata_cache import PartitionInfo, TopicInfo
from tidemill.core.ids import ZERO_UUID, TopicPartition

CONFLICT = LogConflict(
    partition=TopicPartition("orders", 0),
    broker_id=2,
    leader_id=1,
    leader_epoch=4,
    differ_from=90,
    committed_offset=100,
    own_end=105,
    leader_end=120,
)


class Cluster:
    """What the command finds, and whom it chooses."""

    def __init__(self) -> None:
        self.conflicts = [CONFLICT]
        self.chosen: list[int] = []
        partitions = {one: PartitionInfo(one, 1, 4, [1, 2], [1], []) for one in range(2)}
        topics = {"orders": TopicInfo("orders", ZERO_UUID, False, partitions)}
        self.metadata = SimpleNamespace(topics=topics)

    async def refresh(self, _topics: None) -> None:
        pass

    async def find(self, _client: object) -> list[LogConflict]:
        return list(self.conflicts)

    async def choose(self, _client: object, _conflict: LogConflict, broker_id: int) -> None:
        self.chosen.append(broker_id)
        self.conflicts.clear()


@pytest.fixture
def cluster(monkeypatch, run):
    made = Cluster()
    monkeypatch.setattr(cluster_repair, "find_conflicts", made.find)
    monkeypatch.setattr(cluster_repair, "choose_leader", made.choose)
    monkeypatch.setattr(cluster_repair, "run_client", lambda _bootstrap, work: run(work(made)))
    return made


def call(*arguments: str, answer: str | None = None) -> tuple[int, str]:
    result = tidemill("cluster", "repair", *arguments, stdin=answer)
    return result.exit_code, result.output


def test_what_waits_for_a_decision_is_shown_with_what_each_would_drop(cluster):
    code, out = call()
    assert code == 0
    assert out.splitlines() == [
        "orders-0 on broker 2 is not replicated: from offset 90 on its leader, broker 1, has "
        "something else or nothing, but what is below 100 was committed here",
        "  --take leader: broker 2 drops offsets 90 to 104",
        "  --take own: broker 2 leads, and the others drop what they have from offset 90 on; "
        "broker 1 drops offsets 90 to 119",
    ]
    assert call("orders:1")[1] == "no replica waits for a decision\n"


@pytest.mark.parametrize("name", ["payments:0", "orders:2"])
def test_a_partition_that_does_not_exist_is_not_one_that_waits_for_nothing(cluster, name):
    code, out = call(name)
    assert code == 1
    assert f"there is no partition {name.replace(':', '-')}; `tidemill topic list`" in out


def test_json_has_the_numbers(cluster):
    (facts,) = json.loads(call("--json")[1])
    assert (facts["topic"], facts["partition"], facts["broker"]) == ("orders", 0, 2)
    assert (facts["differ_from"], facts["committed"], facts["end"]) == (90, 100, 105)


@pytest.mark.parametrize(("take", "winner"), [("leader", 1), ("own", 2)])
def test_the_log_that_is_taken_wins(cluster, take, winner):
    assert call("orders:0", "--broker", "2", "--take", take, answer="y\n")[0] == 0
    assert cluster.chosen == [winner]


def test_nothing_changes_without_consent_or_by_a_dry_run(cluster):
    wish = ("orders:0", "--broker", "2", "--take", "leader")
    assert call(*wish, answer="n\n")[0] == 130
    assert call(*wish, "--dry-run")[1] == "broker 2 drops offsets 90 to 104\n"
    assert cluster.chosen == []


def test_a_replica_that_refuses_nothing_is_not_repaired(cluster):
    code, out = call("orders:0", "--broker", "1", "--take", "own", "--yes")
    assert code == 2
    assert "nothing to repair" in out


def test_half_a_decision_is_none(cluster):
    assert call("orders:0", "--take", "own")[0] == 2
    assert cluster.chosen == []


def test_a_leader_that_does_not_answer_has_no_end(cluster):
    assert cluster_repair._offsets(5, -1) == "everything from offset 5 on"
    assert cluster_repair._offsets(5, 5) == "nothing"
