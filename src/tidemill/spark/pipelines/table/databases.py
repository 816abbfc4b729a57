"""The databases that a table may be in: SQLite (a path) and PostgreSQL (an address)."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from tidemill.core.errors import TidemillError, UserError

__all__ = ["Database", "DatabaseFailed", "database_of"]

_POSTGRESQL: Final = ("postgresql://", "postgres://")
_LOCK_WAIT_S: Final = 60.0


@final
class DatabaseFailed(TidemillError):
    """The database refused, or cannot be reached. What it has committed, it has."""


class Cursor(Protocol):
    """As much of Python's database interface as both drivers have."""

    def execute(self, statement: str, values: tuple[object, ...] = (), /) -> object: ...

    def executemany(self, statement: str, rows: list[tuple[object, ...]], /) -> object: ...

    def fetchall(self) -> list[tuple[Any, ...]]: ...


@final
@dataclass(frozen=True, slots=True)
class Database:
    """Where it is, and the words in which it differs from the other."""

    location: str
    is_postgresql: bool

    @property
    def bytes_type(self) -> str:
        return "BYTEA" if self.is_postgresql else "BLOB"

    @property
    def mark(self) -> str:
        """Stands for a value in a statement."""
        return "%s" if self.is_postgresql else "?"

    def text(self, found: str | None) -> str | None:
        """The text as it can be stored: PostgreSQL's have no zero characters."""
        if found is None or not self.is_postgresql:
            return found
        return found.replace("\0", "\ufffd")

    @contextlib.contextmanager
    def transaction(self, name: str) -> Iterator[Cursor]:
        """One transaction, committed if the block ends. Those of one `name` wait for each other."""
        opened = self._postgresql(name) if self.is_postgresql else self._sqlite()
        with opened as cursor:
            yield cursor

    @contextlib.contextmanager
    def _sqlite(self) -> Iterator[Cursor]:
        try:
            connection = sqlite3.connect(
                self.location, timeout=_LOCK_WAIT_S, isolation_level=None, check_same_thread=False
            )
            with contextlib.closing(connection):
                connection.execute("BEGIN IMMEDIATE")  # nobody else writes from here on
                yield connection.cursor()
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise DatabaseFailed(f"{self.location}: {error}") from error

    @contextlib.contextmanager
    def _postgresql(self, name: str) -> Iterator[Cursor]:
        try:
            import psycopg
        except ImportError:
            raise UserError("PostgreSQL needs a driver: pip install 'psycopg[binary]'") from None
        try:
            with psycopg.connect(self.location) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (name,))
                yield cursor
        except psycopg.Error as error:
            raise DatabaseFailed(str(error)) from error


def database_of(location: str) -> Database:
    """UserError for an address of some other database."""
    if location.startswith(_POSTGRESQL):
        return Database(location, is_postgresql=True)
    if "://" in location:
        raise UserError(f"database={location}: use postgresql://... or the path of an SQLite file")
    return Database(location, is_postgresql=False)
