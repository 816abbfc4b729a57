from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.core.errors import StoreUnavailable
from tidemill.metadata.store.coord import Create, SessionState
from tidemill.metadata.store.memory_store import MemoryCoord, MemoryCoordServer


async def opened(server: MemoryCoordServer) -> MemoryCoord:
    coord = server.session()
    await coord.start()
    return coord


def test_an_expired_session_loses_its_ephemeral_nodes_and_others_are_notified(run):
    async def scenario() -> None:
        server = MemoryCoordServer()
        dying, watching = await opened(server), await opened(server)
        await dying.multi([Create("/e", b"", ephemeral=True), Create("/p", b"")])
        heard: list[str] = []
        watching.watch("/e", heard.append)
        server.expire(dying)
        assert dying.state is SessionState.LOST
        assert heard == ["/e"]
        assert [path for path, _ in await watching.children("")] == ["/p"]

    run(scenario())


def test_a_suspended_session_cannot_act_but_keeps_its_ephemeral_nodes(run):
    async def scenario() -> None:
        server = MemoryCoordServer()
        cut_off, other = await opened(server), await opened(server)
        await cut_off.multi([Create("/e", b"", ephemeral=True)])
        server.suspend(cut_off)
        assert cut_off.state is SessionState.SUSPENDED
        with pytest.raises(StoreUnavailable):
            await cut_off.get("/e")
        assert await other.get("/e") is not None

    run(scenario())


def test_a_resumed_session_is_told_that_anything_may_have_changed(run):
    async def scenario() -> None:
        server = MemoryCoordServer()
        cut_off, other = await opened(server), await opened(server)
        heard: list[str] = []
        cut_off.watch("/t", heard.append)
        server.suspend(cut_off)
        await other.multi([Create("/t/missed", b"")])
        assert heard == []
        server.resume(cut_off)
        assert cut_off.state is SessionState.CONNECTED
        assert heard == ["/t"]

    run(scenario())


def test_a_session_that_expired_while_suspended_is_lost_when_resumed(run):
    async def scenario() -> None:
        server = MemoryCoordServer()
        cut_off, other = await opened(server), await opened(server)
        await cut_off.multi([Create("/e", b"", ephemeral=True)])
        server.suspend(cut_off)
        server.expire(cut_off)
        assert await other.get("/e") is None
        assert cut_off.state is SessionState.SUSPENDED
        server.resume(cut_off)
        assert cut_off.state is SessionState.LOST
        await cut_off.start()
        assert cut_off.state is SessionState.CONNECTED

    run(scenario())


def test_a_simulator_can_delay_notifications(run):
    async def scenario() -> None:
        held: list[Callable[[], None]] = []
        server = MemoryCoordServer(deliver=held.append)
        coord = await opened(server)
        heard: list[str] = []
        coord.watch("/a", heard.append)
        await coord.multi([Create("/a", b"")])
        assert heard == []
        for deliver in held:
            deliver()
        assert heard == ["/a"]

    run(scenario())
