from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tidemill.core.errors import UserError
from tidemill.spark.pipelines.table.databases import DatabaseFailed, database_of
from tidemill.spark.pipelines.table.result_table import (
    QueryBatch,
    ResultRow,
    ResultTable,
    column_of,
)


def row(offset: int, partition: int = 0, *fields: str | None) -> ResultRow:
    return ResultRow(partition, offset, 1_000 + offset, None, b"%d" % offset, fields)


def table(path: Path, *fields: str, topic_id: str = "first") -> ResultTable:
    return ResultTable(database_of(str(path)), "orders", fields, "t", topic_id)


def add(made: ResultTable, *rows: ResultRow, query: str = "q", batch: int = 0) -> int:
    return made.add(rows, QueryBatch(query, batch))


def stored(path: Path, columns: str = '"partition", "offset"') -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {columns} FROM orders ORDER BY 1, 2").fetchall()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "results.db"


def test_rows_are_stored_with_the_offsets_that_they_go_up_to(path):
    made = table(path, "customer.id")
    assert made.prepare() == {}
    assert add(made, row(0, 0, "ann"), row(1, 0, None), row(7, 3, "bob")) == 3
    assert stored(path, '"partition", "offset", time_ms, key, value, customer_id') == [
        (0, 0, 1000, None, b"0", "ann"),
        (0, 1, 1001, None, b"1", None),
        (3, 7, 1007, None, b"7", "bob"),
    ]
    assert made.prepare() == {0: 2, 3: 8}


def test_F76_a_batch_that_is_repeated_adds_only_what_is_missing(path):
    made = table(path)
    made.prepare()
    add(made, row(0), row(1))
    assert add(made, row(0), row(1), row(2), row(0, 1)) == 2
    assert stored(path) == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_F76_a_batch_that_fails_half_way_leaves_neither_rows_nor_offsets(path):
    made = table(path)
    made.prepare()

    def failing() -> Iterator[ResultRow]:
        yield from (row(offset) for offset in range(1_500))  # more than are sent at once
        raise OSError("the worker is gone")

    with pytest.raises(OSError, match="gone"):
        made.add(failing(), QueryBatch("q", 0))
    assert stored(path) == []
    assert made.prepare() == {}


def test_F76_a_second_writer_that_comes_late_adds_nothing(path):
    first, second = table(path), table(path)
    first.prepare()
    second.prepare()
    add(first, row(0), row(1), row(2))
    assert add(second, row(0), row(1), query="another") == 0
    assert first.prepare() == {0: 3}


def test_a_topic_that_was_deleted_and_created_again_is_not_taken_for_the_old_one(path):
    made = table(path)
    made.prepare()
    add(made, row(5))
    with pytest.raises(UserError, match="was deleted"):
        table(path, topic_id="second").prepare()


def test_offsets_may_have_gaps(path):
    made = table(path)
    made.prepare()
    add(made, row(10), row(20))
    assert made.prepare() == {0: 21}


@pytest.mark.parametrize("field", ["offset", "a b", 'x"; DROP TABLE orders', "1st", ""])
def test_a_field_that_cannot_be_a_column_is_refused(field):
    with pytest.raises(UserError, match="name of a column"):
        column_of(field)


def test_another_name_than_that_of_a_table_is_refused(path):
    with pytest.raises(UserError, match="name of a table"):
        ResultTable(database_of(str(path)), "Orders; x", (), "t", "id")


def test_other_databases_are_refused():
    with pytest.raises(UserError, match="SQLite"):
        database_of("mysql://x")


def test_a_database_that_cannot_be_opened_is_a_failure_that_may_pass(tmp_path):
    with pytest.raises(DatabaseFailed):
        table(tmp_path / "missing" / "results.db").prepare()


# --- the database is not the one that the checkpoint has filled ----------------------------------


def filled(path: Path, batches: int) -> ResultTable:
    made = table(path)
    made.prepare()
    for number in range(batches):
        add(made, row(number), batch=number)
    return made


def test_an_older_copy_of_the_database_is_refused_and_not_filled_with_a_gap(path):
    filled(path, 2)
    copy = path.read_bytes()
    add(table(path), row(2), batch=2)
    path.write_bytes(copy)
    with pytest.raises(UserError, match=r"batches up to 1.*delete the checkpoint"):
        add(table(path), row(3), batch=3)
    assert stored(path) == [(0, 0), (0, 1)]


@pytest.mark.parametrize("others", [0, 1])
def test_another_database_is_refused_and_not_filled_from_the_middle(path, others):
    made = filled(path, others)
    with pytest.raises(UserError, match="none of its batches"):
        add(made, row(7), query="elsewhere", batch=7)
    assert stored(path) == [(0, number) for number in range(others)]


def test_a_batch_without_rows_is_followed_by_the_next_one(path):
    made = filled(path, 1)
    add(made, batch=1)
    assert add(made, row(1), batch=2) == 1


def test_a_new_checkpoint_begins_its_own_batches(path):
    made = filled(path, 2)
    assert add(made, row(2), query="after a lost checkpoint", batch=0) == 1


def test_a_table_from_before_batches_were_stored_goes_on(path):
    made = filled(path, 2)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM tidemill_batches")
        connection.commit()
    assert add(made, row(2), batch=40) == 1
    assert add(made, row(3), batch=41) == 1


def test_text_that_postgresql_cannot_store_does_not_stop_the_pipeline():
    assert database_of("postgresql://x").text("a\0b") == "a\ufffdb"
    assert database_of("x.db").text("a\0b") == "a\0b"
    assert database_of("postgresql://x").text(None) is None
