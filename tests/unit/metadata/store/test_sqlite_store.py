from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.coroutines import run
from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.metadata.store.coord import Create, Node, SessionState
from tidemill.metadata.store.sqlite_store import SqliteCoord


def start(path: Path) -> None:
    async def scenario() -> None:
        coord = SqliteCoord(str(path))
        await coord.start()
        await coord.close()

    run(scenario())


def test_ephemeral_nodes_of_a_killed_process_are_gone_at_the_next_start(run, tmp_path):
    path = tmp_path / "coord.db"
    start(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO nodes VALUES ('/left', x'00', 0, 1), ('/kept', x'00', 3, 0)")
        db.commit()

    async def scenario() -> None:
        coord = SqliteCoord(str(path))
        await coord.start()
        assert await coord.scan("/") == [("/kept", Node(b"\x00", 3))]
        await coord.close()

    run(scenario())


def test_a_second_broker_on_the_same_directory_is_refused(run, tmp_path):
    async def scenario() -> None:
        first = SqliteCoord(str(tmp_path / "coord.db"))
        await first.start()
        second = SqliteCoord(str(tmp_path / "coord.db"))
        with pytest.raises(UserError, match="in use"):
            await second.start()
        assert second.state is SessionState.LOST
        await first.multi([Create("/still-works", b"")])
        await first.close()

    run(scenario())


def test_a_store_of_another_version_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "coord.db"
    start(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
        db.execute("INSERT INTO nodes VALUES ('/left', x'00', 0, 1)")
        db.commit()
    with pytest.raises(UserError, match="format 99"):
        start(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM nodes").fetchone() == (1,)


def test_a_database_of_another_program_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "coord.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE nodes (path TEXT)")
        db.commit()
    with pytest.raises(UserError, match="not a coordination store"):
        start(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (0,)


def test_a_file_that_is_not_a_database_is_refused(tmp_path):
    path = tmp_path / "coord.db"
    path.write_bytes(b"these are not the pages of a database" * 100)
    with pytest.raises(UserError, match="cannot read"):
        start(path)


def test_a_missing_directory_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot open"):
        start(tmp_path / "missing" / "coord.db")


def test_a_failing_database_makes_the_store_unavailable(run, tmp_path):
    async def scenario() -> None:
        coord = SqliteCoord(str(tmp_path / "coord.db"))
        await coord.start()
        with pytest.raises(StoreUnavailable):
            await coord.multi([Create("/a", [])])  # type: ignore[arg-type]
        await coord.multi([Create("/a", b"")])
        assert await coord.get("/a") == Node(b"", 0)
        await coord.close()

    run(scenario())


def test_watches_are_called_for_a_commit_whose_caller_was_cancelled(run, tmp_path):
    async def scenario() -> None:
        coord = SqliteCoord(str(tmp_path / "coord.db"))
        await coord.start()
        heard = asyncio.Event()
        coord.watch("/a", lambda path: heard.set())
        caller = asyncio.create_task(coord.multi([Create("/a", b"")]))
        await asyncio.sleep(0)
        caller.cancel()
        await heard.wait()
        assert caller.cancelled()
        assert await coord.get("/a") == Node(b"", 0)
        await coord.close()

    run(scenario())
