"""The SQLite file of the coordination store: nodes, and the sessions that own the ephemeral ones.

All processes of one host share the file. Every method runs in the worker thread of its store.

- A transaction is on disk before it ends (WAL, synchronous=FULL). Only SQLite opens the file:
  closing another descriptor of it would drop SQLite's own locks.
- Writers queue on `coord.lock`; so do opening and closing the file, since recovery and the last
  checkpoint lock everybody out. Under SQLite's own waiting three writers get a third of this.
- A session is a locked file (`session_files.py`), then its row; it is closed in reverse. Its row
  goes, with its ephemeral nodes, only in a transaction that finds the lock free. A multi finds its
  own row in the same transaction, so nothing that others saw ended still writes.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, final

from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.metadata.store import session_files
from tidemill.metadata.store.coord import (
    Check,
    Create,
    Delete,
    Node,
    Op,
    Put,
    checked_op,
)
from tidemill.metadata.store.session_files import Holder, SessionFile

__all__ = ["Convert", "Looked", "StoreFile", "as_they_are"]

_log = logging.getLogger("tidemill.metadata")

_APPLICATION_ID = 0x544D434F  # "TMCO"
_FORMAT = 3
"""1: one process per file. 2: sessions. 3: the metadata in pages."""
_NO_SESSION = 0
_PATIENCE_S = 1.0
_PATIENCE_LOOKS = 20
_BUSY_MS = 2_000
"""SQLite's own waiting, for what happens outside the queue: a checkpoint of somebody's tool."""
_SCHEMA = (
    """CREATE TABLE nodes (
        path TEXT NOT NULL PRIMARY KEY,
        value BLOB NOT NULL,
        version INTEGER NOT NULL,
        session INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT)",
)
_FROM_FORMAT_1 = (
    # One process owned the file, so an ephemeral node had no owner by name.
    "DELETE FROM nodes WHERE ephemeral",
    "ALTER TABLE nodes RENAME COLUMN ephemeral TO session",
    _SCHEMA[1],
)
_VERSIONS_MAX = 1 << 62
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_RESTORE = "; put the newest good copy of it back: it has the topics, and the logs are untouched"
_AFTER_ALL_PATHS = "\U0010ffff"

Convert = Callable[[Sequence[tuple[str, Node]]], Sequence[tuple[str, bytes]]]


def as_they_are(nodes: Sequence[tuple[str, Node]]) -> list[tuple[str, bytes]]:
    """The nodes of an older form, for a store whose user has none."""
    return [(path, node.value) for path, node in nodes]


@final
class Looked(NamedTuple):
    """What a look at the file has found."""

    changed: bool
    """Another process has changed something, or this one has removed an ended session."""
    is_alive: bool
    """Our own session is still there."""


def _node(path: str, value: bytes, version: object) -> Node:
    """StoreUnavailable: SQLite keeps in any column what a damaged file or another program has."""
    if type(version) is not int or not 0 <= version < _VERSIONS_MAX:
        line = f"the coordination store is damaged: the version of {path!a}"
        raise StoreUnavailable(line + _RESTORE)
    return Node(value, version)


@contextmanager
def _errors_translated() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as err:
        raise StoreUnavailable(f"the coordination store failed: {err}") from err


@final
class StoreFile:
    """An open file, and the session of this process in it."""

    def __init__(
        self,
        path: str,
        sessions: str,
        holder: Holder,
        *,
        monotonic: Callable[[], float],
        convert: Convert,
        foreign: str | None = None,
    ) -> None:
        """UserError if the file is not ours, of another version, or in use elsewhere.

        `foreign`: the type of its file system, if its locks may mean nothing to other hosts; then
        no other process can open it.
        """
        self._path = path
        self._sessions = sessions
        self._holder = holder
        self._convert = convert
        self._foreign = foreign
        self._lock = os.open(
            f"{path.removesuffix('.db')}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            self._report_waiting()
            with self._queued():
                self._open(monotonic)
        except BaseException:
            os.close(self._lock)
            raise

    # --- open and close --------------------------------------------------------------------------

    def _open(self, monotonic: Callable[[], float]) -> None:
        try:
            self._db = sqlite3.connect(
                self._path, isolation_level=None, timeout=0, check_same_thread=False
            )
        except sqlite3.Error as err:
            why = "it is a directory" if os.path.isdir(self._path) else str(err)
            raise UserError(f"cannot open {self._path}: {why}") from err
        try:
            self._prepare()
            self._begin_session(monotonic)
        except sqlite3.Error as err:
            self._db.close()
            if err.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise UserError(self._in_use()) from err
            advice = _RESTORE if err.sqlite_errorcode in _DAMAGED else ""
            raise UserError(f"cannot read {self._path}: {err}{advice}") from err
        except BaseException:
            self._db.close()
            raise

    def _in_use(self) -> str:
        line = f"{self._path} is in use by another program"
        if self._foreign is None:
            return line
        return (
            f"{line}; on a file system of type {self._foreign} one broker can use it, not several"
        )

    def _prepare(self) -> None:
        if self._foreign is not None:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        found = 0 if self._is_new() else self._known_format()
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        if found < _FORMAT:
            with self._transaction():
                if found:
                    self._convert_from(found)
                else:
                    self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                    self._execute_all(_SCHEMA)
                self._db.execute(f"PRAGMA user_version = {_FORMAT}")
        self._db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")

    def _convert_from(self, found: int) -> None:
        """Bring the file into the format of today, in the transaction that says so."""
        if found == 1:
            self._execute_all(_FROM_FORMAT_1)
        self._end_sessions(self._session_rows())
        if self._session_rows():
            raise UserError(f"{self._path} is in use by brokers of an older version: stop them")
        converted = self._convert(self._below("/"))
        self._db.execute("DELETE FROM nodes")
        for path, value in converted:
            self._db.execute("INSERT INTO nodes VALUES (?, ?, 0, ?)", (path, value, _NO_SESSION))

    def _known_format(self) -> int:
        if self._pragma("application_id") != _APPLICATION_ID:
            raise UserError(f"{self._path} is not a coordination store of Tidemill")
        found = self._pragma("user_version")
        if not 1 <= found <= _FORMAT:
            raise UserError(f"{self._path} has format {found}; this version knows {_FORMAT}")
        return found

    def _is_new(self) -> bool:
        tables: tuple[int] = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        return tables[0] == 0 and self._pragma("application_id") == 0

    def _begin_session(self, monotonic: Callable[[], float]) -> None:
        """End the sessions of dead processes, then begin our own: its file, then its row."""
        with self._transaction():
            self._end_sessions(self._session_rows())
        rows = self._session_rows()
        for one in rows:
            session_files.check_kernel(self._sessions, one, self._holder)
        for one in session_files.session_ids(self._sessions):
            if one not in rows:
                session_files.remove(self._sessions, one)
        # Never used before: a peer may still be about to remove the files of an ended one.
        last = self._db.execute("SELECT max(seq) FROM sqlite_sequence").fetchone()[0] or 0
        self.session = SessionFile(self._sessions, last + 1, self._holder, now=monotonic())
        try:
            with self._transaction():
                self._db.execute("INSERT INTO sessions VALUES (?)", (last + 1,))
        except BaseException:
            self.session.close()
            raise
        self._data_version = self._pragma("data_version")
        self._peers = self._other_rows()

    def close(self) -> None:
        """Remove our row and our ephemeral nodes; the file of the session is closed after that.

        If the disk does not take that, the peers do it: they find the session's lock free.
        """
        own_id = self.session.session_id
        try:
            with self._queued():
                peers = self._peers
                try:
                    with self._transaction():
                        self._remove_rows(own_id)
                        peers = self._other_rows()
                finally:
                    self._db.close()
            self._nudge(peers)
        except (sqlite3.Error, OSError) as error:
            _log.warning("%s: the session could not be closed in the store: %s", self._path, error)
        finally:
            os.close(self._lock)

    # --- nodes -----------------------------------------------------------------------------------

    def get(self, path: str) -> Node | None:
        with _errors_translated():
            return self._get(path)

    def children(self, path: str) -> list[tuple[str, Node]]:
        below = f"{path}/"
        with _errors_translated():
            found = self._below(below)
        return [(one, node) for one, node in found if "/" not in one[len(below) :]]

    def _below(self, prefix: str) -> list[tuple[str, Node]]:
        rows = self._db.execute(
            "SELECT path, CAST(value AS BLOB), version FROM nodes"
            " WHERE path >= ? AND path < ? ORDER BY path",
            (prefix, prefix + _AFTER_ALL_PATHS),
        )
        return [(path, _node(path, value, version)) for path, value, version in rows]

    def multi(self, ops: Sequence[Op]) -> None:
        with _errors_translated(), self._queued(), self._transaction():
            self._check_own_row()
            for op in ops:
                self._apply(op, checked_op(op, self._get(op.path)))
            peers = self._other_rows()
        self._nudge(peers)

    # --- other processes -------------------------------------------------------------------------

    def look(self) -> Looked:
        """Find what others have changed, and end the sessions of dead processes."""
        with _errors_translated():
            version = self._pragma("data_version")
            changed = version != self._data_version
            self._data_version = version
            if changed:
                self._peers = self._other_rows()
            ended = self._end_dead_peers()
            is_alive = self.session.is_linked and (not changed or self._has_own_row())
        return Looked(changed or ended, is_alive)

    def _end_dead_peers(self) -> bool:
        dead = [one for one in self._peers if session_files.is_ended(self._sessions, one)]
        if not dead:
            return False
        with self._queued(), self._transaction():
            ended = self._end_sessions(dead)
            self._peers = self._other_rows()
        for one in ended:
            session_files.remove(self._sessions, one)
        self._nudge(self._peers)
        return True

    def _end_sessions(self, candidates: Iterable[int]) -> list[int]:
        """Inside a transaction: remove those whose lock is free."""
        ended = [one for one in candidates if session_files.is_ended(self._sessions, one)]
        for one in ended:
            self._remove_rows(one)
        return ended

    def _remove_rows(self, session_id: int) -> None:
        self._db.execute("DELETE FROM nodes WHERE session = ?", (session_id,))
        self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def _session_rows(self) -> list[int]:
        return [row[0] for row in self._db.execute("SELECT id FROM sessions ORDER BY id")]

    def _other_rows(self) -> list[int]:
        return [one for one in self._session_rows() if one != self.session.session_id]

    def _has_own_row(self) -> bool:
        return self.session.session_id in self._session_rows()

    def _check_own_row(self) -> None:
        if not self._has_own_row():
            raise StoreUnavailable("the session was ended by another process")

    def _nudge(self, peers: Iterable[int]) -> None:
        for one in peers:
            session_files.nudge(self._sessions, one)

    # --- SQLite ----------------------------------------------------------------------------------

    def _report_waiting(self) -> None:
        """Say it once if another process holds up the queue when this one starts."""
        for _ in range(_PATIENCE_LOOKS):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                threading.Event().wait(_PATIENCE_S / _PATIENCE_LOOKS)
            else:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
                return
        _log.warning(
            "%s is held by another process: waiting for it. `fuser` on the lock file beside it "
            "names the process",
            self._path,
        )

    @contextmanager
    def _queued(self) -> Iterator[None]:
        """Wait for the other writers of this host; SessionWatch ends one that hangs in here."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _execute_all(self, statements: Iterable[str]) -> None:
        for statement in statements:
            self._db.execute(statement)

    def _pragma(self, name: str) -> int:
        row: tuple[int] = self._db.execute(f"PRAGMA {name}").fetchone()
        return row[0]

    def _get(self, path: str) -> Node | None:
        row = self._db.execute(
            "SELECT CAST(value AS BLOB), version FROM nodes WHERE path = ?", (path,)
        ).fetchone()
        return None if row is None else _node(path, *row)

    def _apply(self, op: Op, node: Node | None) -> None:
        match op:
            case Create():
                owner = self.session.session_id if op.ephemeral else _NO_SESSION
                self._db.execute(
                    "INSERT INTO nodes VALUES (?, ?, 0, ?)", (op.path, op.value, owner)
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
