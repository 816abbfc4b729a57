"""What the stores promise when processes die, stop, hang and come back.

On one host a process that stands still is killed before its session ends; across hosts its session
ends by the clock, and it finds that out when it goes on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.store_peer import StorePeer, gone, open_store
from tidemill.metadata.store.coord import Coord, Create

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

Scenario = Callable[[Coord, StorePeer], Awaitable[None]]
only_sqlite = pytest.mark.parametrize("kind", ["sqlite"])
only_zookeeper = pytest.mark.parametrize("kind", ["zookeeper"])


@pytest.fixture(params=["sqlite", "zookeeper"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The store, as a `StorePeer` is told."""
    if kind == "sqlite":
        return f"sqlite:{tmp_path / 'coord.db'}"
    server, chroot = (request.getfixturevalue(name) for name in ("zookeeper", "chroot"))
    return f"zookeeper:{server.address}{chroot}"


@pytest.fixture
def play(run, store: str) -> Callable[[Scenario], None]:
    """Run a scenario with a session in this process and one in another."""

    async def whole(scenario: Scenario) -> None:
        own = open_store(store)
        await own.start()
        try:
            with StorePeer(store) as peer:
                await scenario(own, peer)
        finally:
            await own.close()

    return lambda scenario: run(whole(scenario))


def test_a_process_sees_and_hears_what_another_one_writes(play):
    async def scenario(own: Coord, peer: StorePeer) -> None:
        assert peer.ask("hear /a 17") == "listening"
        await own.multi([Create("/a", b"17")])
        assert await asyncio.to_thread(peer.line) == "done"

    play(scenario)


def test_changes_of_two_processes_at_once_are_all_made(play):
    async def scenario(own: Coord, peer: StorePeer) -> None:
        await own.multi([Create("/n", b"0"), Create("/m", b"0")])
        peer.tell("count /n 200")
        for number in range(200):
            await own.multi([Create(f"/own/{number}", b"")])
        assert await asyncio.to_thread(peer.line) == "done"
        node = await own.get("/n")
        assert node is not None
        assert (node.value, node.version) == (b"200", 200)

    play(scenario)


def test_a_killed_process_loses_its_ephemeral_nodes_and_the_others_hear_it(play):
    async def scenario(own: Coord, peer: StorePeer) -> None:
        peer.ask("create /e ephemeral")
        peer.ask("create /kept")
        peer.signal(signal.SIGKILL)
        await gone(own, "/e")
        assert await own.get("/kept") is not None

    play(scenario)


@only_sqlite
def test_a_process_that_comes_back_at_once_finds_nothing_of_its_last_life(play, store):
    async def scenario(own: Coord, peer: StorePeer) -> None:
        assert peer.ask("create /e ephemeral") == "done"
        peer.signal(signal.SIGKILL)
        peer.wait()
        with StorePeer(store) as again:
            assert again.ask("create /e ephemeral") == "done"
            assert await own.get("/e") is not None

    play(scenario)


@only_zookeeper
def test_a_stopped_process_loses_its_session_and_notices_when_it_goes_on(play):
    async def scenario(own: Coord, peer: StorePeer) -> None:
        peer.ask("create /e ephemeral")
        peer.signal(signal.SIGSTOP)
        await gone(own, "/e")
        peer.signal(signal.SIGCONT)
        assert peer.ask("restart") == "done"
        assert peer.ask("create /e ephemeral") == "done"

    play(scenario)


@only_zookeeper
def test_a_process_whose_event_loop_hangs_loses_its_session(play):
    async def scenario(own: Coord, peer: StorePeer) -> None:
        peer.ask("create /e ephemeral")
        assert peer.ask("hang") == "hanging"
        await gone(own, "/e")

    play(scenario)


@only_sqlite
def test_a_stopped_process_is_killed_before_its_session_ends(play):
    async def scenario(own: Coord, peer: StorePeer) -> None:
        peer.ask("create /e ephemeral")
        peer.signal(signal.SIGSTOP)
        await gone(own, "/e")
        assert peer.wait() == -signal.SIGKILL

    play(scenario)


@only_sqlite
def test_a_process_whose_event_loop_hangs_is_killed(play):
    async def scenario(own: Coord, peer: StorePeer) -> None:
        peer.ask("create /e ephemeral")
        assert peer.ask("hang") == "hanging"
        await gone(own, "/e")
        assert peer.wait() == -signal.SIGKILL

    play(scenario)


@only_sqlite
def test_a_process_that_is_stopped_inside_the_queue_of_writers_holds_them_up_until_it_is_killed(
    play, store
):
    async def scenario(own: Coord, peer: StorePeer) -> None:
        assert peer.ask("lock") == "done"
        peer.signal(signal.SIGSTOP)
        waiting = asyncio.ensure_future(own.multi([Create("/a", b"")]))
        # A process that starts meanwhile has to wait in the same queue.
        starting = asyncio.ensure_future(asyncio.to_thread(StorePeer, store))
        await waiting
        assert peer.wait() == -signal.SIGKILL
        with await starting as other:
            assert other.ask("get /a") == ""

    play(scenario)


@only_sqlite
def test_a_process_that_starts_alone_ends_one_that_was_stopped_inside_the_queue(run, store):
    with StorePeer(store) as stopped:
        stopped.ask("create /e ephemeral")
        stopped.ask("lock")
        stopped.signal(signal.SIGSTOP)
        with StorePeer(store) as other:
            assert stopped.wait() == -signal.SIGKILL
            # The kernel frees the locks of a dead process one after the other: the queue's can be
            # free while the session's is still held, and then the next look finds the end.
            assert other.ask("gone /e") == "done"
