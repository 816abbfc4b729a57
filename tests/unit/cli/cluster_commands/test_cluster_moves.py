from __future__ import annotations

import pytest

from tests.unit.cli.invoke import tidemill
from tidemill.cli.cluster_commands import cluster_moves
from tidemill.client.admin.cluster_admin import ClusterSnapshot
from tidemill.client.network.metadata_cache import BrokerInfo, PartitionInfo, TopicInfo
from tidemill.core.ids import ZERO_UUID


@pytest.fixture(autouse=True)
def cluster(monkeypatch, run):
    """Brokers 0 and 1, and a topic on them; nothing but describing it is answered."""
    partition = PartitionInfo(0, 0, 1, replicas=[0, 1], isr=[0, 1], offline_replicas=[])
    snapshot = ClusterSnapshot(
        "id",
        0,
        [BrokerInfo(one, "h", 1) for one in range(2)],
        [TopicInfo("orders", ZERO_UUID, False, {0: partition})],
    )

    async def take(_client: object) -> ClusterSnapshot:
        return snapshot

    monkeypatch.setattr(cluster_moves, "take_cluster_snapshot", take)
    monkeypatch.setattr(cluster_moves, "run_client", lambda _bootstrap, work: run(work(None)))


@pytest.mark.parametrize("flags", [[], ["--dry-run"], ["--cancel"]])
def test_a_broker_that_is_not_there_cannot_be_drained(flags):
    result = tidemill("cluster", "drain", "9", *flags)
    assert result.exit_code == 2
    assert "broker 9 is not there, only 0, 1: start it" in result.stderr


@pytest.mark.parametrize("name", ["order", "orders:7"])
def test_a_topic_or_partition_that_there_is_not_is_named_as_it_was_typed(name):
    result = tidemill("cluster", "reassign", name, "--brokers", "1,0", "--dry-run")
    assert result.exit_code == 1
    assert f"there is no {name}; `tidemill topic list`" in result.stderr
