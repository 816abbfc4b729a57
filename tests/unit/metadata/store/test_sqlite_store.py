from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.coroutines import run
from tidemill.core.clock import SystemClock
from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.metadata.store import session_files, sqlite_file, sqlite_store
from tidemill.metadata.store.coord import Create, Node, Put, SessionState
from tidemill.metadata.store.session_files import SessionFile, read_page, this_process
from tidemill.metadata.store.sqlite_store import SqliteCoord


def start(path: Path) -> None:
    async def scenario() -> None:
        coord = SqliteCoord(str(path), SystemClock())
        await coord.start()
        await coord.close()

    run(scenario())


def test_ephemeral_nodes_of_a_dead_process_are_gone_at_the_next_start(run, tmp_path):
    path = tmp_path / "coord.db"
    start(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO sessions VALUES (7)")
        db.execute("INSERT INTO nodes VALUES ('/left', x'00', 0, 7), ('/kept', x'00', 3, 0)")
        db.commit()
    (tmp_path / "sessions" / "7").write_bytes(b"")
    (tmp_path / "sessions" / "5").write_bytes(b"")  # its process died before it had a row

    async def scenario() -> None:
        coord = SqliteCoord(str(path), SystemClock())
        await coord.start()
        assert await coord.children("") == [("/kept", Node(b"\x00", 3))]
        assert sorted(file.name for file in (tmp_path / "sessions").iterdir()) == ["8", "8.nudge"]
        await coord.close()
        assert list((tmp_path / "sessions").iterdir()) == []

    run(scenario())


def test_a_session_that_another_kernel_holds_is_refused(run, tmp_path):
    path = tmp_path / "coord.db"
    start(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO sessions VALUES (7)")
        db.commit()
    elsewhere = replace(this_process(), boot_id="another")
    held = SessionFile(str(tmp_path / "sessions"), 7, elsewhere, now=0.0)
    with pytest.raises(UserError, match="on another machine"):
        start(path)
    held.close()
    start(path)


def test_a_session_whose_file_was_removed_by_hand_is_lost_and_can_begin_again(run, tmp_path):
    async def scenario() -> None:
        coord = SqliteCoord(str(tmp_path / "coord.db"), SystemClock())
        await coord.start()
        await coord.multi([Create("/e", b"", ephemeral=True)])
        lost = asyncio.Event()
        coord.on_state(lambda state: lost.set() if state is SessionState.LOST else None)
        (tmp_path / "sessions" / "1").unlink()
        await lost.wait()
        with pytest.raises(StoreUnavailable):
            await coord.get("/e")
        await coord.start()
        assert await coord.get("/e") is None
        await coord.close()

    run(scenario())


def test_a_session_whose_row_is_gone_writes_nothing(run, tmp_path):
    async def scenario() -> None:
        coord = SqliteCoord(str(tmp_path / "coord.db"), SystemClock())
        await coord.start()
        with closing(sqlite3.connect(tmp_path / "coord.db")) as db:
            db.execute("DELETE FROM sessions")
            db.commit()
        with pytest.raises(StoreUnavailable):
            await coord.multi([Create("/a", b"")])
        await coord.close()
        await coord.start()
        assert await coord.get("/a") is None
        await coord.close()

    run(scenario())


def format_1(path: Path) -> None:
    """A file as the last version that had one process per file has left it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA application_id = {0x544D434F}")
        db.execute("PRAGMA user_version = 1")
        db.execute(
            "CREATE TABLE nodes (path TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL, "
            "version INTEGER NOT NULL, ephemeral INTEGER NOT NULL) WITHOUT ROWID"
        )
        db.execute("INSERT INTO nodes VALUES ('/left', x'00', 0, 1), ('/kept', x'01', 3, 0)")


def test_a_file_of_format_1_is_converted(run, tmp_path):
    path = tmp_path / "coord.db"
    format_1(path)

    async def scenario() -> None:
        coord = SqliteCoord(str(path), SystemClock())
        await coord.start()
        assert await coord.children("") == [("/kept", Node(b"\x01", 0))]
        await coord.close()

    run(scenario())
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)


def test_a_file_that_a_broker_of_format_1_has_open_is_refused(tmp_path):
    path = tmp_path / "coord.db"
    format_1(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("UPDATE nodes SET version = 4 WHERE path = '/kept'")
        with pytest.raises(UserError, match="in use"):
            start(path)


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
    with pytest.raises(UserError, match=r"cannot read .*; put the newest good copy of it back"):
        start(path)


def test_a_directory_in_the_place_of_the_file_is_named(tmp_path):
    (tmp_path / "coord.db").mkdir()
    with pytest.raises(UserError, match=r"cannot open .*: it is a directory"):
        start(tmp_path / "coord.db")


def test_a_missing_directory_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot open"):
        start(tmp_path / "missing" / "coord.db")


def test_a_failing_database_makes_the_store_unavailable(run, tmp_path):
    async def scenario() -> None:
        coord = SqliteCoord(str(tmp_path / "coord.db"), SystemClock())
        await coord.start()
        with pytest.raises(StoreUnavailable):
            await coord.multi([Create("/a", [])])  # type: ignore[arg-type]
        await coord.multi([Create("/a", b"")])
        assert await coord.get("/a") == Node(b"", 0)
        await coord.close()

    run(scenario())


def test_watches_are_called_for_a_commit_whose_caller_was_cancelled(run, tmp_path):
    async def scenario() -> None:
        coord = SqliteCoord(str(tmp_path / "coord.db"), SystemClock())
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


def test_one_broker_uses_a_file_system_that_several_hosts_could_have(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_store, "try_find_foreign", lambda _directory: "virtiofs")

    async def scenario() -> None:
        coord = SqliteCoord(str(tmp_path / "coord.db"), SystemClock())
        await coord.start()
        await coord.multi([Create("/a", b"1")])
        second = SqliteCoord(str(tmp_path / "coord.db"), SystemClock())
        with pytest.raises(
            UserError, match=r"in use .*; on a file system of type virtiofs one bro"
        ):
            await second.start()
        node = await coord.get("/a")
        assert node is not None
        assert node.value == b"1"
        await coord.close()

    run(scenario())


def test_a_value_that_a_person_wrote_as_text_is_read(run, tmp_path):
    path = tmp_path / "coord.db"

    async def scenario() -> None:
        coord = SqliteCoord(str(path), SystemClock())
        await coord.start()
        await coord.multi([Create("/a/b", b"1")])
        await coord.close()
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE nodes SET value = 'mended'")
            db.commit()
        await coord.start()
        node = await coord.get("/a/b")
        assert node is not None
        assert node.value == b"mended"
        assert [one.value for _, one in await coord.children("/a")] == [b"mended"]
        await coord.close()

    run(scenario())


@pytest.mark.parametrize("version", ["'abc'", "x'00'", "1.5", "-1", str(2**63 - 1)])
def test_S46_a_node_with_a_version_that_we_did_not_write_is_neither_read_nor_written(
    run, tmp_path, version
):
    path = tmp_path / "coord.db"
    start(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"INSERT INTO nodes VALUES ('/folder/a', x'00', {version}, 0)")
        db.commit()

    async def scenario() -> None:
        coord = SqliteCoord(str(path), SystemClock())
        await coord.start()
        with pytest.raises(StoreUnavailable, match="put the newest good copy of it back"):
            await coord.get("/folder/a")
        with pytest.raises(StoreUnavailable, match="damaged"):
            await coord.children("/folder")
        with pytest.raises(StoreUnavailable, match="damaged"):
            await coord.multi([Create("/other", b""), Put("/folder/a", b"", 2**63 - 1)])
        assert await coord.get("/other") is None
        await coord.close()

    run(scenario())


@pytest.mark.parametrize("text", [b'[Infinity,"a","b"]', b"[" * 4_000, b"{}", b"\xff"])
def test_a_session_file_that_we_did_not_write_is_no_session(tmp_path, text):
    (tmp_path / "7").write_bytes(bytes(8) + len(text).to_bytes(2, sys.byteorder) + text)
    assert read_page(str(tmp_path), 7) is None


def test_a_disk_without_room_for_a_session_is_refused_and_not_mapped(run, tmp_path, monkeypatch):
    """A store to a mapped page that has no block ends the process: SIGBUS."""

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        with pytest.raises(UserError, match="No space left"):
            await SqliteCoord(str(tmp_path / "coord.db"), SystemClock()).start()

    monkeypatch.setattr(session_files.os, "pwrite", full)
    run(scenario())


def test_a_start_that_fails_leaves_no_descriptor_and_no_session_file(run, tmp_path, monkeypatch):
    path = tmp_path / "coord.db"
    start(path)
    before = len(os.listdir("/proc/self/fd"))

    def refused(*_arguments: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(session_files.os, "eventfd", refused)
    for _ in range(5):
        with pytest.raises(UserError):
            start(path)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert os.listdir(tmp_path / "sessions") == []


def test_a_session_that_a_full_disk_keeps_in_the_store_is_ended_by_the_next_one(run, tmp_path):
    path = str(tmp_path / "coord.db")

    async def scenario() -> None:
        coord = SqliteCoord(path, SystemClock())
        await coord.start()
        await coord.multi([Create("/e", b"", ephemeral=True)])
        file = coord._file
        assert file is not None
        file._db.execute("PRAGMA query_only = 1")  # as on a full disk, nothing can be written
        await coord.close()
        again = SqliteCoord(path, SystemClock())
        await again.start()
        assert await again.get("/e") is None
        await again.close()

    run(scenario())


def test_a_start_that_waits_for_another_process_says_so(run, tmp_path, monkeypatch, caplog):
    path = tmp_path / "coord.db"
    start(path)
    monkeypatch.setattr(sqlite_file, "_PATIENCE_S", 0.0)
    holder = os.open(tmp_path / "coord.lock", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)

    async def scenario() -> None:
        coord = SqliteCoord(str(path), SystemClock())
        starting = asyncio.ensure_future(coord.start())
        while not caplog.records:  # noqa: ASYNC110 - a log line sets no event
            await asyncio.sleep(0)
        assert "is held by another process" in caplog.text
        os.close(holder)
        await starting
        await coord.close()

    run(scenario())
