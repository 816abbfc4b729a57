"""What every coordination store promises: in memory, simulated, in SQLite, and in ZooKeeper.

What it promises when processes die or hang is in `test_coord_processes.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.support.coroutines import run as run_plain
from tidemill.core.clock import SystemClock
from tidemill.core.errors import StoreUnavailable
from tidemill.core.limits import COORD_MULTI_BYTES_MAX, COORD_OPS_PER_MULTI_MAX
from tidemill.core.rng import SeededRng
from tidemill.metadata.store.coord import (
    Check,
    Coord,
    CoordConflict,
    Create,
    Delete,
    MultiTooLarge,
    Node,
    Put,
    SessionState,
)
from tidemill.metadata.store.memory_store import MemoryCoordServer
from tidemill.metadata.store.sqlite_store import SqliteCoord
from tidemill.testing.sim.coord import SimCoord
from tidemill.testing.sim.loop import SimLoop

Scenario = Callable[[Coord], Awaitable[None]]
Duet = Callable[[Coord, Coord], Awaitable[None]]


ZOOKEEPER = pytest.param("zookeeper", marks=[pytest.mark.e2e, pytest.mark.slow])


@pytest.fixture(params=["memory", "simulated", "sqlite", ZOOKEEPER])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def run(kind: str) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Run a coroutine, on simulated time where the store has a simulated network."""
    return SimLoop(SeededRng(1)).run if kind == "simulated" else run_plain


@pytest.fixture
def make_coord(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], Coord]:
    """Makes sessions with the same store."""
    server = MemoryCoordServer()
    delays = SeededRng(2)
    match kind:
        case "memory":
            return server.session
        case "simulated":
            return lambda: SimCoord(
                server, delay_s=lambda: delays.below(100) / 1000, observe=lambda op, path: None
            )
        case "zookeeper":
            return request.getfixturevalue("zookeeper_coord")
    return lambda: SqliteCoord(str(tmp_path / "coord.db"), SystemClock())


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


@pytest.fixture
def play_two(run, make_coord: Callable[[], Coord]) -> Callable[[Duet], None]:
    """Run a scenario with two sessions at once; it may close them."""

    async def whole(scenario: Duet) -> None:
        first, second = make_coord(), make_coord()
        await first.start()
        await second.start()
        try:
            await scenario(first, second)
        finally:
            await first.close()
            await second.close()

    return lambda scenario: run(whole(scenario))


class Heard:
    """Calls of a watch; `next` waits for one, since they may be late and may be merged."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._event = asyncio.Event()

    def __call__(self, path: str) -> None:
        self.paths.append(path)
        self._event.set()

    async def next(self) -> None:
        await self._event.wait()
        self._event.clear()

    async def until(self, coord: Coord, path: str, wanted: Node | None) -> None:
        """Wait for calls, at least one, until a node is as wanted."""
        await self.next()
        while await coord.get(path) != wanted:
            await self.next()


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
        assert await coord.children("") == [("/a", Node(b"1", 0)), ("/b", Node(b"1", 0))]

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


def test_the_children_of_a_path_are_one_level_below_it_with_their_values(play):
    async def scenario(coord: Coord) -> None:
        paths = ["/t/b", "/t/a", "/t/folder/10", "/ta"]
        await coord.multi([Create(path, path.encode()) for path in paths])
        assert await coord.children("/t") == [
            ("/t/a", Node(b"/t/a", 0)),
            ("/t/b", Node(b"/t/b", 0)),
        ]
        assert await coord.children("/none") == []

    play(scenario)


def test_a_multi_with_too_many_ops_is_refused_before_it_is_sent(play):
    async def scenario(coord: Coord) -> None:
        most = [Create(f"/{number}", b"") for number in range(COORD_OPS_PER_MULTI_MAX)]
        with pytest.raises(MultiTooLarge):
            await coord.multi([*most, Create("/more", b"")])
        assert await coord.children("") == []
        await coord.multi(most)

    play(scenario)


def test_a_multi_with_too_many_bytes_is_refused_before_it_is_sent(play):
    async def scenario(coord: Coord) -> None:
        half = b"x" * (COORD_MULTI_BYTES_MAX // 2)
        with pytest.raises(MultiTooLarge):
            await coord.multi([Create("/a", half), Create("/b", half)])
        assert await coord.get("/a") is None
        await coord.multi([Create("/a", half)])

    play(scenario)


def test_a_watch_is_called_for_every_kind_of_change_of_the_children_of_a_path(play):
    async def scenario(coord: Coord) -> None:
        heard = Heard()
        coord.watch("/t", heard)
        await coord.multi([Create("/t/a", b""), Create("/other", b"")])
        await heard.until(coord, "/t/a", Node(b"", 0))
        await coord.multi([Put("/t/a", b"1", 0)])
        await heard.until(coord, "/t/a", Node(b"1", 1))
        await coord.multi([Delete("/t/a", 1)])
        await heard.until(coord, "/t/a", None)
        assert set(heard.paths) == {"/t"}

    play(scenario)


def test_a_watch_is_called_for_every_kind_of_change_of_a_node(play):
    async def scenario(coord: Coord) -> None:
        heard = Heard()
        coord.watch("/n", heard)
        await coord.multi([Create("/n", b"")])
        await heard.until(coord, "/n", Node(b"", 0))
        await coord.multi([Put("/n", b"1", 0)])
        await heard.until(coord, "/n", Node(b"1", 1))
        await coord.multi([Delete("/n", 1)])
        await heard.until(coord, "/n", None)
        assert set(heard.paths) == {"/n"}

    play(scenario)


def test_a_watch_is_not_called_for_checks_and_conflicts(play):
    async def scenario(coord: Coord) -> None:
        await coord.multi([Create("/t/a", b"")])
        heard, last = Heard(), Heard()
        coord.watch("/t", heard)
        coord.watch("/last", last)
        await coord.multi([Create("/last", b"")])
        await last.until(coord, "/last", Node(b"", 0))
        heard.paths.clear()  # a new watch may be called once for nothing
        await coord.multi([Check("/t/a", 0)])
        with pytest.raises(CoordConflict):
            await coord.multi([Put("/t/a", b"1", 9)])
        await coord.multi([Put("/last", b"1", 0)])
        await last.until(coord, "/last", Node(b"1", 1))
        assert heard.paths == []

    play(scenario)


def test_a_session_sees_what_another_one_wrote(play_two):
    async def scenario(first: Coord, second: Coord) -> None:
        await first.multi([Create("/a", b"1")])
        assert await second.get("/a", newest=True) == Node(b"1", 0)
        await second.multi([Put("/a", b"2", 0)])
        with pytest.raises(CoordConflict):
            await first.multi([Put("/a", b"3", 0)])
        assert await first.get("/a", newest=True) == Node(b"2", 1)

    play_two(scenario)


def test_a_watch_is_called_for_the_changes_of_another_session(play_two):
    async def scenario(first: Coord, second: Coord) -> None:
        heard = Heard()
        second.watch("/t", heard)
        await first.multi([Create("/t/a", b"1")])
        await heard.until(second, "/t/a", Node(b"1", 0))

    play_two(scenario)


def test_a_closed_session_takes_its_ephemeral_nodes_and_no_others_with_it(play_two):
    async def scenario(first: Coord, second: Coord) -> None:
        await first.multi([Create("/e/1", b"", ephemeral=True), Create("/kept", b"")])
        await second.multi([Create("/e/2", b"", ephemeral=True)])
        heard = Heard()
        second.watch("/e", heard)
        await first.close()
        await heard.until(second, "/e/1", None)
        assert [path for path, _ in await second.children("/e")] == ["/e/2"]
        assert await second.get("/kept") is not None

    play_two(scenario)


def test_an_ephemeral_node_that_was_replaced_belongs_to_who_made_it_again(play_two):
    async def scenario(first: Coord, second: Coord) -> None:
        await first.multi([Create("/e", b"1", ephemeral=True)])
        await second.multi([Delete("/e", 0), Create("/e", b"2", ephemeral=True)])
        await first.close()
        assert await second.get("/e", newest=True) == Node(b"2", 0)

    play_two(scenario)


def test_changes_of_two_sessions_at_once_are_all_made_one_after_the_other(play_two):
    async def count(coord: Coord) -> None:
        done = 0
        while done < 20:
            node = await coord.get("/n", newest=True)
            assert node is not None
            try:
                await coord.multi([Put("/n", b"%d" % (int(node.value) + 1), node.version)])
            except CoordConflict:
                continue
            done += 1

    async def scenario(first: Coord, second: Coord) -> None:
        await first.multi([Create("/n", b"0")])
        await asyncio.gather(count(first), count(second))
        assert await second.get("/n", newest=True) == Node(b"40", 40)

    play_two(scenario)


def test_only_an_open_session_has_a_lease(run, make_coord):
    async def scenario() -> None:
        coord = make_coord()
        assert coord.lease_until == -math.inf
        await coord.start()
        assert coord.lease_until > SystemClock().boottime()
        await coord.close()
        assert coord.lease_until == -math.inf

    run(scenario())


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
            await coord.children("/")
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
        assert await second.children("") == [("/stays", Node(b"1", 0))]
        await second.close()

    run(scenario())


def test_a_session_can_be_opened_again_after_it_ended(run, make_coord):
    async def scenario() -> None:
        coord = make_coord()
        heard = Heard()
        coord.watch("/a", heard)
        await coord.start()
        await coord.close()
        await coord.start()
        await coord.multi([Create("/a", b"")])
        await heard.until(coord, "/a", Node(b"", 0))
        await coord.close()

    run(scenario())
