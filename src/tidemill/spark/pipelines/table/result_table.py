"""A table of records, and how far each partition was read, changed in the same transaction.

Whatever is repeated, after a crash, with a lost checkpoint or by a second run at the same time, a
record is in the table once: the table of offsets says which records it has, and both change
together or not at all. The unique key of the table is a second guard.

A checkpoint goes on behind its own last batch, whatever the table has. If the database is an older
copy, or another one, rows would be missing without a sign of it. So the last batch of each query is
stored, too, and a batch that does not follow it is refused.

    tidemill_offsets   result, topic, topic_id, partition -> next_offset
    tidemill_batches   result, query -> batch
    RESULT             topic, partition, offset, time_ms, key, value, and the chosen fields
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, final

from tidemill.core.errors import UserError
from tidemill.spark.pipelines.table.databases import Cursor, Database

__all__ = ["QueryBatch", "ResultRow", "ResultTable", "column_of"]

_ROWS_AT_ONCE: Final = 1_000
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_OFFSETS: Final = "tidemill_offsets"
_BATCHES: Final = "tidemill_batches"
_OWN_COLUMNS: Final = ("topic", "partition", "offset", "time_ms", "key", "value")


class ResultRow(NamedTuple):
    """One record."""

    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    fields: tuple[str | None, ...]


class QueryBatch(NamedTuple):
    """One batch of a query, which has the same id as long as its checkpoint."""

    query_id: str
    batch_id: int


def column_of(field: str) -> str:
    """The column of a JSON field: `customer.id` is stored as customer_id. UserError if none is."""
    name = field.replace(".", "_").lower()
    if not _NAME.fullmatch(name) or name in _OWN_COLUMNS:
        raise UserError(f"{field} cannot be the name of a column: use letters, digits, _ and .")
    return name


@final
class ResultTable:
    """One table in a database, filled from one topic."""

    def __init__(
        self, database: Database, name: str, fields: Sequence[str], topic: str, topic_id: str
    ) -> None:
        if not _NAME.fullmatch(name) or name in (_OFFSETS, _BATCHES):
            raise UserError(f"{name} cannot be the name of a table: use small letters, digits, _")
        self._database = database
        self._name = name
        self._columns = [*_OWN_COLUMNS, *(column_of(field) for field in fields)]
        self._topic = topic
        self._topic_id = topic_id

    def prepare(self) -> dict[int, int]:
        """Create what is missing; the next offset of each partition that the table has read.

        UserError if it was filled from an earlier topic of the same name.
        """
        kind = self._database.bytes_type
        fields = "".join(f', "{name}" TEXT' for name in self._columns[len(_OWN_COLUMNS) :])
        with self._database.transaction(self._name) as cursor:
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {_OFFSETS} (result TEXT, topic TEXT, topic_id TEXT, "
                f'"partition" INTEGER, next_offset BIGINT, '
                f'PRIMARY KEY (result, topic, "partition"))'
            )
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {_BATCHES} (result TEXT, query TEXT, batch BIGINT, "
                f"PRIMARY KEY (result, query))"
            )
            cursor.execute(
                f'CREATE TABLE IF NOT EXISTS "{self._name}" (topic TEXT, "partition" INTEGER, '
                f'"offset" BIGINT, time_ms BIGINT, key {kind}, value {kind}{fields}, '
                f'PRIMARY KEY (topic, "partition", "offset"))'
            )
            return self._next_offsets(cursor)

    def add(self, rows: Iterable[ResultRow], batch: QueryBatch) -> int:
        """Add the rows that the table does not have, and their offsets; how many there were.

        UserError if the table lacks what came before this batch.
        """
        added = 0
        with self._database.transaction(self._name) as cursor:
            before = self._next_offsets(cursor)
            self._check_follows(cursor, batch, is_empty=not before)
            after = dict(before)
            for chunk in _chunks(rows):
                fresh = [row for row in chunk if row.offset >= before.get(row.partition, 0)]
                if fresh:
                    cursor.executemany(self._insert(), [self._values(row) for row in fresh])
                    added += len(fresh)
                for row in chunk:
                    after[row.partition] = max(after.get(row.partition, 0), row.offset + 1)
            moved = {part: offset for part, offset in after.items() if before.get(part) != offset}
            if moved:
                cursor.executemany(self._upsert(), [self._offset(*item) for item in moved.items()])
            cursor.execute(self._upsert_batch(), (self._name, *batch))
        return added

    def _check_follows(self, cursor: Cursor, batch: QueryBatch, *, is_empty: bool) -> None:
        cursor.execute(
            f"SELECT query, batch FROM {_BATCHES} WHERE result = {self._database.mark}",  # noqa: S608  # names are checked
            (self._name,),
        )
        known = {str(query): int(last) for query, last in cursor.fetchall()}
        if not known and not is_empty:
            return  # filled before batches were stored
        last = known.get(batch.query_id, -1)
        if batch.batch_id > last + 1:
            has = f"its batches up to {last}" if last >= 0 else "none of its batches"
            raise UserError(
                f"the checkpoint goes on with batch {batch.batch_id}, and the table {self._name} "
                f"has {has}: the database is another one or an older copy, and rows would be "
                "missing; delete the checkpoint, and the pipeline goes on where the table ends"
            )

    def _next_offsets(self, cursor: Cursor) -> dict[int, int]:
        mark = self._database.mark
        cursor.execute(
            f'SELECT "partition", next_offset, topic_id FROM {_OFFSETS} '  # noqa: S608  # names are checked
            f"WHERE result = {mark} AND topic = {mark}",
            (self._name, self._topic),
        )
        found = cursor.fetchall()
        if any(topic_id != self._topic_id for _, _, topic_id in found):
            raise UserError(
                f"the table {self._name} was filled from a topic {self._topic} that was deleted: "
                f"use another table, or delete its rows in {_OFFSETS} and in {self._name}"
            )
        return {int(partition): int(offset) for partition, offset, _ in found}

    def _insert(self) -> str:
        names = ", ".join(f'"{name}"' for name in self._columns)
        marks = ", ".join([self._database.mark] * len(self._columns))
        return f'INSERT INTO "{self._name}" ({names}) VALUES ({marks})'  # noqa: S608  # names are checked

    def _values(self, row: ResultRow) -> tuple[object, ...]:
        own = (row.partition, row.offset, row.time_ms, row.key, row.value)
        return (self._topic, *own, *map(self._database.text, row.fields))

    def _upsert(self) -> str:
        marks = ", ".join([self._database.mark] * 5)
        return (
            f'INSERT INTO {_OFFSETS} (result, topic, topic_id, "partition", next_offset) '  # noqa: S608  # no value is in it
            f'VALUES ({marks}) ON CONFLICT (result, topic, "partition") '
            f"DO UPDATE SET next_offset = excluded.next_offset"
        )

    def _upsert_batch(self) -> str:
        marks = ", ".join([self._database.mark] * 3)
        return (
            f"INSERT INTO {_BATCHES} (result, query, batch) VALUES ({marks}) "  # noqa: S608  # no value is in it
            f"ON CONFLICT (result, query) DO UPDATE SET batch = excluded.batch"
        )

    def _offset(self, partition: int, offset: int) -> tuple[object, ...]:
        return (self._name, self._topic, self._topic_id, partition, offset)


def _chunks(rows: Iterable[ResultRow]) -> Iterator[list[ResultRow]]:
    left = iter(rows)
    while chunk := list(islice(left, _ROWS_AT_ONCE)):
        yield chunk
