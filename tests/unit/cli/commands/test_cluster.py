from __future__ import annotations

import pytest

from tests.unit.cli.invoke import tidemill
from tidemill.cli.commands import cluster as commands
from tidemill.cli.failures import WRONG_USE
from tidemill.client.admin.cluster_admin import ClusterSnapshot, ElectionResult
from tidemill.client.network.metadata_cache import BrokerInfo, PartitionInfo, TopicInfo
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import ZERO_UUID, TopicPartition

NO_LEADER, MOVED = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Cluster:
    """Brokers 0 and 1, with partitions by leader; remembers for which an election was asked."""

    def __init__(self) -> None:
        self.leaders = {0: -1, 1: 1, 2: 0}
        self.elected: list[list[TopicPartition] | None] = []

    async def take(self, _client: object) -> ClusterSnapshot:
        partitions = {
            index: PartitionInfo(index, leader, 1, replicas=[0, 1], isr=[1], offline_replicas=[])
            for index, leader in self.leaders.items()
        }
        topic = TopicInfo("orders", ZERO_UUID, False, partitions)
        return ClusterSnapshot("id", 0, [BrokerInfo(one, "h", 1) for one in range(2)], [topic])

    async def elect(self, _client, partitions, *, unclean):
        self.elected.append(partitions)
        return [ElectionResult(one, ErrorCode.NONE, "") for one in partitions or []]


@pytest.fixture
def cluster(monkeypatch, run):
    made = Cluster()
    monkeypatch.setattr(commands, "take_cluster_snapshot", made.take)
    monkeypatch.setattr(commands, "elect_leaders", made.elect)
    monkeypatch.setattr(commands, "run_client", lambda _bootstrap, work: run(work(made)))
    return made


def test_a_person_is_asked_about_the_partitions_that_would_lose_records(cluster):
    refused = tidemill("cluster", "elect", "unclean", stdin="n\n")
    assert refused.exit_code == 130
    assert "lost in orders-0. Go on?" in refused.stderr
    assert cluster.elected == []
    assert tidemill("cluster", "elect", "unclean", stdin="y\n").exit_code == 0
    assert cluster.elected == [[NO_LEADER]]


def test_nobody_is_asked_when_no_partition_needs_an_unclean_election(cluster):
    cluster.leaders[0] = 0
    result = tidemill("cluster", "elect", "unclean", stdin="")
    assert (result.exit_code, result.stdout) == (0, "no partition needs an election\n")
    assert cluster.elected == []


@pytest.mark.parametrize(("kind", "needing"), [("preferred", MOVED), ("unclean", NO_LEADER)])
def test_a_dry_run_shows_who_would_get_another_leader_and_elects_none(cluster, kind, needing):
    result = tidemill("cluster", "elect", kind, "--dry-run")
    assert result.stdout == f"{needing}  would get another leader\n"
    other = f"--partition={needing.topic}:2"
    assert tidemill("cluster", "elect", kind, "--dry-run", "--json", other).stdout == "[]\n"
    assert cluster.elected == []


@pytest.mark.parametrize("index", ["2147483648", "9" * 5_000, "-1", "x", ""])
def test_a_number_that_no_partition_can_have_is_wrong_use(cluster, index):
    result = tidemill("cluster", "elect", "preferred", "--partition", f"orders:{index}")
    assert result.exit_code == WRONG_USE
    assert "expected TOPIC:PARTITION, as in orders:0" in result.stderr
    assert cluster.elected == []


@pytest.mark.parametrize(
    "more", [("unclean",), ("unclean", "--dry-run"), ("preferred", "--dry-run")]
)
def test_a_partition_that_does_not_exist_is_not_one_that_needs_no_election(cluster, more):
    result = tidemill("cluster", "elect", *more, "--partition", "order:0", stdin="y\n")
    assert result.exit_code == WRONG_USE
    assert "there is no partition order-0" in result.stderr
    assert cluster.elected == []
