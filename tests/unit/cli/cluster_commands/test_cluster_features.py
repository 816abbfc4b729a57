from __future__ import annotations

import json

import pytest

from tests.unit.cli.invoke import tidemill
from tidemill.cli.cluster_commands import cluster_features
from tidemill.client.admin.feature_admin import ClusterFeatures, LevelDirection, SupportedLevels
from tidemill.core.errors import ErrorCode, KafkaError

OLD = {"group.version": SupportedLevels(1, 1), "tidemill.version": SupportedLevels(1, 1)}
NEW = {**OLD, "tidemill.version": SupportedLevels(1, 2)}


class Cluster:
    """The features that a command finds, and the changes that it asks for."""

    def __init__(self) -> None:
        self.found = ClusterFeatures(
            7, {"group.version": 1, "tidemill.version": 1}, {0: NEW, 1: NEW}
        )
        self.changes: list[tuple[dict[str, int], LevelDirection, bool]] = []
        self.refusal: KafkaError | None = None

    async def describe(self, _client: object) -> ClusterFeatures:
        return self.found

    async def change(self, _client, levels, direction, *, dry_run=False) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.changes.append((dict(levels), direction, dry_run))


@pytest.fixture
def cluster(monkeypatch, run):
    made = Cluster()
    monkeypatch.setattr(cluster_features, "describe_features", made.describe)
    monkeypatch.setattr(cluster_features, "change_levels", made.change)
    monkeypatch.setattr(cluster_features, "run_client", lambda _bootstrap, work: run(work(made)))
    return made


def call(*arguments: str) -> tuple[int, str]:
    result = tidemill("cluster", "features", *arguments)
    return result.exit_code, result.output


def test_levels_and_ranges_are_shown_with_what_can_be_done(cluster):
    code, out = call("describe")
    assert code == 0
    assert [line.split() for line in out.splitlines()[:3]] == [
        ["FEATURE", "LEVEL", "SUPPORTED"],
        ["group.version", "1", "1"],
        ["tidemill.version", "1", "1", "to", "2"],
    ]
    assert out.splitlines()[3:] == [
        "`tidemill cluster features upgrade tidemill.version=2` raises tidemill.version"
    ]


def test_a_broker_that_is_too_old_is_named(cluster):
    cluster.found = ClusterFeatures(7, {"tidemill.version": 1}, {0: NEW, 3: OLD})
    _, out = call("describe")
    assert "1 to 2 by broker 0, 1 by broker 3" in out
    assert out.splitlines()[-1] == "tidemill.version can be 2 when broker 3 is upgraded"


def test_the_features_as_json(cluster):
    _, out = call("describe", "--json")
    facts = json.loads(out)
    assert facts["epoch"] == 7
    assert facts["features"][1] == {
        "feature": "tidemill.version",
        "level": 1,
        "supported": [{"broker": one, "lowest": 1, "highest": 2} for one in (0, 1)],
    }


@pytest.mark.parametrize("named", [(), ("tidemill.version=2",)])
def test_an_upgrade_raises_what_is_named_or_all_that_can_rise(cluster, named):
    assert call("upgrade", *named) == (0, "tidemill.version went from 1 to 2\n")
    assert cluster.changes == [({"tidemill.version": 2}, LevelDirection.UP, False)]


def test_a_dry_run_is_said_to_the_cluster_and_to_the_reader(cluster):
    assert call("upgrade", "--dry-run") == (0, "tidemill.version could go from 1 to 2\n")
    assert cluster.changes == [({"tidemill.version": 2}, LevelDirection.UP, True)]
    _, out = call("downgrade", "--dry-run", "--json", "group.version=0")
    change = {"feature": "group.version", "from": 1, "to": 0}
    assert json.loads(out) == {"changes": [change], "done": False}


def test_an_upgrade_with_nothing_to_raise_asks_for_nothing(cluster):
    cluster.found = ClusterFeatures(7, {"group.version": 1, "tidemill.version": 2}, {0: NEW})
    assert call("upgrade") == (0, "all levels are as they should be\n")
    assert not cluster.changes


def test_a_downgrade_lowers_what_is_named(cluster):
    assert call("downgrade", "group.version=0") == (0, "group.version went from 1 to 0\n")
    assert cluster.changes == [({"group.version": 0}, LevelDirection.DOWN, False)]


def test_a_refusal_is_the_error(cluster):
    why = "tidemill.version cannot be 2: broker 3 is away"
    cluster.refusal = KafkaError(ErrorCode.INVALID_UPDATE_VERSION, why)
    code, out = call("upgrade")
    assert code == 1
    assert why in out


@pytest.mark.parametrize("text", ["x", "x=", "=1", "x=-1", "x=1.5", "x=32768", "x=" + "9" * 5000])
def test_a_level_that_is_none_is_refused_before_anybody_is_asked(cluster, text):
    code, out = call("downgrade", text)
    assert code != 0
    assert "as in tidemill.version=2" in out
    assert not cluster.changes
