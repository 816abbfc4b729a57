"""The coordination store of a single node: a SQLite file in the data directory.

One process owns the file (SQLite's exclusive lock refuses a second one), so there is one session,
which lives as long as the process. Ephemeral nodes of an earlier process are removed at start. A
multi is one transaction, on disk (WAL, synchronous=FULL) before it returns.

SQLite blocks, and a commit waits for the disk: all calls go to one worker thread, in order. Watches
are called on the event loop, after the commit and before the caller of `multi` continues.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar, final

from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.metadata.store.coord import (
    Check,
    Create,
    Delete,
    Node,
    Op,
    Put,
    SessionState,
    Watchers,
    check_multi,
    checked_op,
)

__all__ = ["SqliteCoord"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_APPLICATION_ID = 0x544D434F  # "TMCO"
_FORMAT = 1
_SCHEMA = """
    CREATE TABLE nodes (
        path TEXT NOT NULL PRIMARY KEY,
        value BLOB NOT NULL,
        version INTEGER NOT NULL,
        ephemeral INTEGER NOT NULL
    ) WITHOUT ROWID
"""
_AFTER_ALL_PATHS = "\U0010ffff"


@final
class SqliteCoord:
    """The session of the process that owns the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: _NodeFile | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._state = SessionState.LOST
        self._watchers = Watchers()
        self._state_callbacks: list[Callable[[SessionState], None]] = []

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def lease_until(self) -> float:
        """No clock ends the session: it lives as long as this process owns the file."""
        return math.inf if self._state is SessionState.CONNECTED else -math.inf

    async def start(self) -> None:
        """Open or make the file. UserError if it is in use, not ours, or of another version."""
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tidemill-coord")
        try:
            self._file = await self._run(_NodeFile, self._path)
        except BaseException:
            self._worker.shutdown(wait=False)
            raise
        self._enter(SessionState.CONNECTED)

    async def get(self, path: str, newest: bool = False) -> Node | None:
        return await self._run(self._open_file().get, path)

    async def children(self, path: str) -> list[tuple[str, Node]]:
        return await self._run(self._open_file().children, path)

    async def scan(self, prefix: str) -> list[tuple[str, Node]]:
        return await self._run(self._open_file().scan, prefix)

    async def multi(self, ops: Sequence[Op]) -> None:
        check_multi(ops)
        file = self._open_file()
        changed = list(dict.fromkeys(op.path for op in ops if not isinstance(op, Check)))

        def committed(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                for path in changed:
                    self._watchers.tell(path)

        # Shielded: cancelling the caller does not undo the commit, so watches must be called.
        future = self._submit(file.multi, list(ops))
        future.add_done_callback(committed)
        await asyncio.shield(future)

    def watch(self, prefix: str, changed: Callable[[str], None]) -> None:
        self._watchers.add(prefix, changed)

    def on_state(self, changed: Callable[[SessionState], None]) -> None:
        self._state_callbacks.append(changed)

    async def close(self) -> None:
        if self._file is None or self._worker is None:
            return
        file, self._file = self._file, None
        self._enter(SessionState.LOST)
        try:
            await self._run(file.close)
        finally:
            self._worker.shutdown(wait=False)

    def _open_file(self) -> _NodeFile:
        if self._file is None:
            raise StoreUnavailable("the session is not open")
        return self._file

    def _submit(
        self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_T]:
        assert self._worker is not None
        assert not kwargs
        return asyncio.get_running_loop().run_in_executor(self._worker, call, *args)

    async def _run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self._submit(call, *args, **kwargs)

    def _enter(self, state: SessionState) -> None:
        self._state = state
        for changed in self._state_callbacks:
            changed(state)


@contextmanager
def _sqlite_errors_translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as err:
        raise StoreUnavailable(f"the coordination store failed: {err}") from err


@final
class _NodeFile:
    """The SQLite file; every method runs in the worker thread."""

    def __init__(self, path: str) -> None:
        try:
            self._db = sqlite3.connect(
                path, isolation_level=None, timeout=0, check_same_thread=False
            )
        except sqlite3.Error as err:
            raise UserError(f"cannot open {path}: {err}") from err
        try:
            self._prepare(path)
        except sqlite3.Error as err:
            self._db.close()
            if err.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise UserError(f"{path} is in use by another broker") from err
            raise UserError(f"cannot read {path}: {err}") from err
        except UserError:
            self._db.close()
            raise

    def _prepare(self, path: str) -> None:
        # The exclusive lock is taken with the first access and kept until the file is closed.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        new = self._is_new()
        if not new:
            self._check_format(path)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("BEGIN IMMEDIATE")
        if new:
            self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {_FORMAT}")
            self._db.execute(_SCHEMA)
        self._db.execute("DELETE FROM nodes WHERE ephemeral")
        self._db.execute("COMMIT")

    def _check_format(self, path: str) -> None:
        if self._pragma("application_id") != _APPLICATION_ID:
            raise UserError(f"{path} is not a coordination store of Tidemill")
        found = self._pragma("user_version")
        if found != _FORMAT:
            raise UserError(f"{path} has format {found}; this version knows {_FORMAT}")

    def _is_new(self) -> bool:
        tables: tuple[int] = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        return tables[0] == 0 and self._pragma("application_id") == 0

    def _pragma(self, name: str) -> int:
        row: tuple[int] = self._db.execute(f"PRAGMA {name}").fetchone()
        return row[0]

    def get(self, path: str) -> Node | None:
        with _sqlite_errors_translated():
            return self._get(path)

    def scan(self, prefix: str) -> list[tuple[str, Node]]:
        with _sqlite_errors_translated():
            rows = self._db.execute(
                "SELECT path, value, version FROM nodes WHERE path >= ? AND path < ? ORDER BY path",
                (prefix, prefix + _AFTER_ALL_PATHS),
            )
            return [(path, Node(value, version)) for path, value, version in rows]

    def children(self, path: str) -> list[tuple[str, Node]]:
        below = f"{path}/"
        return [found for found in self.scan(below) if "/" not in found[0][len(below) :]]

    def multi(self, ops: Sequence[Op]) -> None:
        with _sqlite_errors_translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for op in ops:
                    self._apply(op, checked_op(op, self._get(op.path)))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        with _sqlite_errors_translated():
            self._db.execute("DELETE FROM nodes WHERE ephemeral")
            self._db.close()

    def _get(self, path: str) -> Node | None:
        row = self._db.execute(
            "SELECT value, version FROM nodes WHERE path = ?", (path,)
        ).fetchone()
        return None if row is None else Node(*row)

    def _apply(self, op: Op, node: Node | None) -> None:
        match op:
            case Create():
                self._db.execute(
                    "INSERT INTO nodes VALUES (?, ?, 0, ?)", (op.path, op.value, op.ephemeral)
                )
            case Put():
                assert node is not None
                self._db.execute(
                    "UPDATE nodes SET value = ?, version = ? WHERE path = ?",
                    (node.value, node.version, op.path),
                )
            case Delete():
                self._db.execute("DELETE FROM nodes WHERE path = ?", (op.path,))
            case Check():
                pass
