"""A store of format 1, as the last version with one process per file has left it.

`tests/fixtures/coord_v1/coord.db` was written by that version and is never written again: two lives
of one broker, the second one unclean; topics made, grown, deleted and made again; keys set for all
brokers, for one and for a group.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.metadata.small_cluster import count_of
from tidemill.core.clock import SystemClock
from tidemill.core.config.broker_config import Endpoint, broker_config
from tidemill.core.errors import UserError
from tidemill.core.rng import SeededRng
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.features.feature_levels import BEFORE_FEATURES
from tidemill.metadata.format_1 import converted_from_format_1
from tidemill.metadata.image import stored_fields
from tidemill.metadata.image.overrides import ALL_BROKERS, broker_owner, group_owner
from tidemill.metadata.store.sqlite_store import SqliteCoord

FIXTURE = Path(__file__).parents[2] / "fixtures" / "coord_v1" / "coord.db"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "coord.db"
    shutil.copyfile(FIXTURE, path)
    return path


async def joined(path: Path) -> tuple[Cluster, list[str]]:
    alarms: list[str] = []
    coord = SqliteCoord(str(path), SystemClock(), convert=converted_from_format_1)
    config = broker_config(flags=["node.id=0"])
    cluster = Cluster(coord, config, SeededRng(1), clock=SystemClock(), alarm=alarms.append)
    await cluster.start(Endpoint("h", 9092), unclean=False)
    return cluster, alarms


def test_everything_of_a_store_of_format_1_is_there_afterwards(run, stored):
    async def scenario() -> None:
        cluster, alarms = await joined(stored)
        image = cluster.image
        assert alarms == []
        assert image.cluster_id == "zWE-MNjxSt-Rt1hKImWx9Q"
        ids = {name: str(topic.topic_id) for name, topic in image.topics.items()}
        assert ids == {
            "__consumer_offsets": "9b810e76-6ec9-4286-a3ca-828dd5f4b3b2",
            "again": "e4b06ce6-0741-47a8-bce4-2c8218072e8c",
            "orders": "1e2feb89-414c-443c-9027-c4d1c386bbc4",
        }
        assert image.topics["orders"].overrides == {"retention.ms": "5000"}
        sizes = {name: len(topic.partitions) for name, topic in image.topics.items()}
        assert sizes == {"__consumer_offsets": 50, "again": 1, "orders": 3}
        states = {
            (one.leader, one.leader_epoch, one.partition_epoch, one.isr, one.last_known_leader)
            for topic in image.topics.values()
            for one in topic.partitions
        }
        assert states == {(0, 1, 2, (0,), 0)}
        assert image.overrides_of(ALL_BROKERS) == {"log.retention.ms": "7000"}
        assert image.overrides_of(broker_owner(0)) == {"log.retention.bytes": "9000"}
        session = {"consumer.session.timeout.ms": "50000"}
        assert image.overrides_of(group_owner("a/ü")) == session
        assert image.features == BEFORE_FEATURES
        await cluster.close()

    run(scenario())


def test_epochs_and_counters_go_on_from_where_format_1_left_them(run, stored):
    async def scenario() -> None:
        cluster, _ = await joined(stored)
        assert (count_of(cluster.broker_epoch), cluster.image.controller_epoch) == (3, 3)
        assert (await cluster.reserve_producer_ids(10)) == range(2_000, 2_010)
        await cluster.close()
        again, _ = await joined(stored)
        assert (count_of(again.broker_epoch), again.image.controller_epoch) == (4, 4)
        await again.close()

    run(scenario())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE nodes SET value = x'00' WHERE path = '/topics/orders'",
        "UPDATE nodes SET value = x'00' WHERE path LIKE '/partitions/1e2feb89%/1'",
        "DELETE FROM nodes WHERE path LIKE '/partitions/1e2feb89%/1'",
        "UPDATE nodes SET value = x'00' WHERE path = '/configs/broker/~all'",
        "INSERT INTO nodes VALUES ('/configs/user/x', x'00', 0, 0)",
        "UPDATE nodes SET value = x'7b7d' WHERE path = '/cluster'",
    ],
)
def test_S46_a_node_that_cannot_be_read_stops_the_conversion_which_changes_nothing(
    run, stored, damage
):
    with closing(sqlite3.connect(stored)) as db:
        db.execute(damage)
        db.commit()
        before = list(db.execute("SELECT * FROM nodes ORDER BY path"))

    async def scenario() -> None:
        with pytest.raises(UserError, match="cannot be converted"):
            await joined(stored)

    run(scenario())
    with closing(sqlite3.connect(stored)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert list(db.execute("SELECT * FROM nodes ORDER BY path")) == before


def test_a_store_whose_settings_would_be_too_long_to_read_is_not_converted(
    run, stored, monkeypatch
):
    monkeypatch.setattr(stored_fields, "NODE_STORED_BYTES_MAX", 90)

    async def scenario() -> None:
        with pytest.raises(UserError, match="cannot be converted"):
            await joined(stored)

    run(scenario())
    with closing(sqlite3.connect(stored)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)


def test_partitions_of_a_half_made_topic_do_not_come_along(run, stored):
    with closing(sqlite3.connect(stored)) as db:
        path = "/partitions/00000000-0000-0000-0000-000000000009/0"
        db.execute("INSERT INTO nodes VALUES (?, x'00', 0, 0)", (path,))
        db.commit()

    async def scenario() -> None:
        cluster, alarms = await joined(stored)
        assert len(cluster.image.topics) == 3
        assert alarms == []
        await cluster.close()

    run(scenario())
