"""The pipeline `table` under real Spark: SQLite and PostgreSQL hold each record once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.spark.pipeline_runs import run_once, send
from tests.support.clients import Message
from tests.support.postgres import postgres, programs
from tests.support.topics import create_topic
from tidemill.core.errors import UserError
from tidemill.spark.pipelines.table.databases import database_of


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "results.db")
        return
    if programs() is None:
        missing = "PostgreSQL is missing (tools/setup_env database installs it on Debian)"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    with postgres() as address:
        yield address


def stored(database: str) -> list[tuple[object, ...]]:
    with database_of(database).transaction("look") as cursor:
        cursor.execute('SELECT "partition", "offset", customer_id FROM orders ORDER BY 1, 2')
        return [tuple(row) for row in cursor.fetchall()]


def orders(first: int, last: int, partition: int = 0) -> list[Message]:
    return [
        Message(b'{"customer": {"id": "c%d"}}' % number, partition=partition)
        for number in range(first, last)
    ]


@pytest.mark.e2e
def test_F76_a_restart_goes_on_from_the_database_also_without_its_checkpoint(
    spark, running, topic, tmp_path, database
):
    # Given a table with the first records of a topic
    create_topic(running.bootstrap, topic, 2)
    values = {
        "bootstrap": running.bootstrap,
        "input.topic": topic,
        "database": database,
        "fields": "customer.id",
        "checkpoint.dir": str(tmp_path / "checkpoints"),
    }
    send(running.bootstrap, topic, [*orders(0, 30), *orders(0, 2, partition=1)])
    run_once(spark, "table", values | {"batch.rows.max": 10})

    # When more come, and the pipeline runs again with its checkpoint, and then without
    send(running.bootstrap, topic, orders(30, 35))
    run_once(spark, "table", values)
    shutil.rmtree(tmp_path / "checkpoints")
    strange = [b"no JSON", rb'{"customer": {"id": "\u0000"}}']
    strange_ones = [Message(value, partition=1) for value in strange]
    send(running.bootstrap, topic, [*orders(35, 40), *strange_ones])
    run_once(spark, "table", values)

    # Then each record is there once
    assert stored(database) == [
        *((0, number, f"c{number}") for number in range(40)),
        (1, 0, "c0"),
        (1, 1, "c1"),
        (1, 2, None),
        (1, 3, database_of(database).text("\0")),
    ]


@pytest.mark.e2e
def test_a_table_does_not_take_a_new_topic_for_the_old_one_of_its_name(
    spark, running, topic, tmp_path, recreate
):
    create_topic(running.bootstrap, topic)
    send(running.bootstrap, topic, orders(0, 3))
    values = {
        "bootstrap": running.bootstrap,
        "input.topic": topic,
        "database": str(tmp_path / "results.db"),
        "checkpoint.dir": str(tmp_path / "checkpoints"),
    }
    run_once(spark, "table", values)

    recreate(running.bootstrap, topic)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(UserError, match="was deleted"):
        run_once(spark, "table", values)


@pytest.mark.e2e
def test_a_database_that_the_checkpoint_has_not_filled_gets_no_rows_from_the_middle(
    spark, running, topic, tmp_path
):
    create_topic(running.bootstrap, topic)
    send(running.bootstrap, topic, orders(0, 3))
    values = {
        "bootstrap": running.bootstrap,
        "input.topic": topic,
        "fields": "customer.id",
        "checkpoint.dir": str(tmp_path / "checkpoints"),
    }
    run_once(spark, "table", values | {"database": str(tmp_path / "first.db")})

    send(running.bootstrap, topic, orders(3, 5))
    second = str(tmp_path / "second.db")
    with pytest.raises(UserError, match="rows would be missing; delete the checkpoint"):
        run_once(spark, "table", values | {"database": second})
    assert stored(second) == []

    shutil.rmtree(tmp_path / "checkpoints")
    run_once(spark, "table", values | {"database": second})
    assert stored(second) == [(0, number, f"c{number}") for number in range(5)]
