"""What every coordination store promises, in memory and in SQLite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tidemill.core.errors import StoreUnavailable
from tidemill.metadata.store.coord import (
    Check,
    Coord,
    CoordConflict,
    Create,
    Delete,
    Node,
    Put,
    SessionState,
)
from tidemill.metadata.store.memory_store import MemoryCoordServer
from tidemill.metadata.store.sqlite_store import SqliteCoord

Scenario = Callable[[Coord], Awaitable[None]]


@pytest.fixture(params=["memory", "sqlite"])
def make_coord(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Coord]:
    """Makes sessions with the same store, one after the other."""
    if request.param == "memory":
        return MemoryCoordServer().session
    return lambda: SqliteCoord(str(tmp_path / "coord.db"))


@pytest.fixture
def play(run, make_coord: Callable[[], Coord]) -> Callable[[Scenario], None]:
    """Run a scenario with an open session."""

    async def whole(scenario: Scenario) -> None:
        coord = make_coord()
        await coord.start()
        try:
            await scenario(coord)
        finally:
            await coord.close()

    return lambda scenario: run(whole(scenario))


def test_a_created_node_is_read_back_with_version_0(play):
    async def scenario(coord: Coord) -> None:
        await coord.multi([Create("/a", b"\x00value\xff")])
        assert await coord.get("/a") == Node(b"\x00value\xff", 0)

    play(scenario)


def test_a_missing_node_is_none(play):
    async def scenario(coord: Coord) -> None:
        assert await coord.get("/a") is None

    play(scenario)


def test_a_put_raises_the_version_by_one(play):
    async def scenario(coord: Coord) -> None:
        await coord.multi([Create("/a", b"1")])
        await coord.multi([Put("/a", b"2", 0)])
        await coord.multi([Put("/a", b"3", 1)])
        assert await coord.get("/a") == Node(b"3", 2)

    play(scenario)


def test_a_node_that_is_made_again_starts_at_version_0(play):
    async def scenario(coord: Coord) -> None:
        await coord.multi([Create("/a", b"1")])
        await coord.multi([Put("/a", b"2", 0)])
        await coord.multi([Delete("/a", 1)])
        await coord.multi([Create("/a", b"3")])
        assert await coord.get("/a") == Node(b"3", 0)

    play(scenario)


@pytest.mark.parametrize(
    "op",
    [Create("/a", b"x"), Put("/a", b"x", 7), Delete("/a", 7), Check("/a", 7)],
    ids=lambda op: type(op).__name__,
)
def test_an_op_that_does_not_fit_the_node_conflicts(play, op):
    async def scenario(coord: Coord) -> None:
        await coord.multi([Create("/a", b"1")])
        with pytest.raises(CoordConflict) as conflict:
            await coord.multi([op])
        assert conflict.value.path == "/a"
        assert await coord.get("/a") == Node(b"1", 0)

    play(scenario)


@pytest.mark.parametrize(
    "op",
    [Put("/gone", b"x", 0), Delete("/gone", 0), Check("/gone", 0)],
    ids=lambda op: type(op).__name__,
)
def test_an_op_on_a_missing_node_conflicts(play, op):
    async def scenario(coord: Coord) -> None:
        with pytest.raises(CoordConflict):
            await coord.multi([op])

    play(scenario)


def test_a_multi_with_one_conflict_changes_nothing(play):
    async def scenario(coord: Coord) -> None:
        await coord.multi([Create("/a", b"1"), Create("/b", b"1")])
        with pytest.raises(CoordConflict):
            await coord.multi(
                [Put("/a", b"2", 0), Create("/c", b"1"), Delete("/b", 0), Check("/a", 9)]
            )
        assert await coord.scan("/") == [("/a", Node(b"1", 0)), ("/b", Node(b"1", 0))]

    play(scenario)


def test_ops_of_a_multi_see_the_ones_before_them(play):
    async def scenario(coord: Coord) -> None:
        await coord.multi([Create("/a", b"1"), Put("/a", b"2", 0), Check("/a", 1)])
        await coord.multi([Delete("/a", 1), Create("/a", b"3")])
        assert await coord.get("/a") == Node(b"3", 0)

    play(scenario)


def test_a_check_that_holds_lets_the_multi_through(play):
    async def scenario(coord: Coord) -> None:
        await coord.multi([Create("/guard", b"")])
        await coord.multi([Check("/guard", 0), Create("/a", b"1")])
        assert await coord.get("/guard") == Node(b"", 0)
        assert await coord.get("/a") is not None

    play(scenario)


def test_a_scan_gives_the_nodes_under_a_prefix_in_order(play):
    async def scenario(coord: Coord) -> None:
        paths = ["/t/b", "/t/a/10", "/t/a/2", "/ta", "/s/z", "/t/~"]
        await coord.multi([Create(path, b"") for path in paths])
        found = [path for path, _ in await coord.scan("/t/")]
        assert found == ["/t/a/10", "/t/a/2", "/t/b", "/t/~"]

    play(scenario)


def test_a_watch_is_called_for_every_kind_of_change(play):
    async def scenario(coord: Coord) -> None:
        heard: list[str] = []
        coord.watch("/t/", heard.append)
        await coord.multi([Create("/t/a", b""), Create("/other", b"")])
        await coord.multi([Put("/t/a", b"1", 0)])
        await coord.multi([Delete("/t/a", 1)])
        assert heard == ["/t/a", "/t/a", "/t/a"]

    play(scenario)


def test_a_watch_is_not_called_for_checks_and_conflicts(play):
    async def scenario(coord: Coord) -> None:
        heard: list[str] = []
        await coord.multi([Create("/t/a", b"")])
        coord.watch("/t/", heard.append)
        await coord.multi([Check("/t/a", 0)])
        with pytest.raises(CoordConflict):
            await coord.multi([Put("/t/a", b"1", 9)])
        assert heard == []

    play(scenario)


def test_a_session_is_connected_from_start_to_close(run, make_coord):
    async def scenario() -> None:
        coord = make_coord()
        states: list[SessionState] = []
        coord.on_state(states.append)
        assert coord.state is SessionState.LOST
        await coord.start()
        assert coord.state is SessionState.CONNECTED
        await coord.close()
        assert states == [SessionState.CONNECTED, SessionState.LOST]

    run(scenario())


def test_a_closed_session_answers_nothing(run, make_coord):
    async def scenario() -> None:
        coord = make_coord()
        await coord.start()
        await coord.close()
        with pytest.raises(StoreUnavailable):
            await coord.get("/a")
        with pytest.raises(StoreUnavailable):
            await coord.scan("/")
        with pytest.raises(StoreUnavailable):
            await coord.multi([Create("/a", b"")])

    run(scenario())


def test_all_but_ephemeral_nodes_outlive_the_session(
    run,
    make_coord,
):
    async def scenario() -> None:
        first = make_coord()
        await first.start()
        await first.multi([Create("/stays", b"1"), Create("/goes", b"1", ephemeral=True)])
        assert await first.get("/goes") is not None
        await first.close()
        second = make_coord()
        await second.start()
        assert await second.scan("/") == [("/stays", Node(b"1", 0))]
        await second.close()

    run(scenario())


def test_a_session_can_be_opened_again_after_it_ended(run, make_coord):
    async def scenario() -> None:
        coord = make_coord()
        heard: list[str] = []
        coord.watch("/", heard.append)
        await coord.start()
        await coord.close()
        await coord.start()
        await coord.multi([Create("/a", b"")])
        assert heard == ["/a"]
        await coord.close()

    run(scenario())
