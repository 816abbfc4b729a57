"""The simulated session by the clock: lease, end of session, and the faults of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidemill.core.errors import StoreUnavailable
from tidemill.core.rng import SeededRng
from tidemill.metadata.store.coord import CoordConflict, Create, Put, SessionState
from tidemill.metadata.store.memory_store import MemoryCoordServer
from tidemill.testing.sim.coord import SimCoord
from tidemill.testing.sim.loop import CURRENT_HOST, SimHost, SimLoop

TIMEOUT_S = 6.0
LEASE_S = 4.0
DELAY_S = 0.001


class Stage:
    """One session of one host."""

    def __init__(self) -> None:
        self.loop = SimLoop(SeededRng(1))
        self.server = MemoryCoordServer()
        self.host = SimHost("a")
        self.coord = SimCoord(
            self.server,
            delay_s=lambda: DELAY_S,
            observe=lambda _op, _path: None,
            session_timeout_s=TIMEOUT_S,
            host=self.host,
            rng=SeededRng(2),
        )

    @property
    def lease_left_s(self) -> float:
        return self.coord.lease_until - self.host.time(self.loop.time())


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    stage = Stage()

    async def main() -> None:
        # Started in the context of its host, as a broker starts it.
        token = CURRENT_HOST.set(stage.host)
        await stage.coord.start()
        CURRENT_HOST.reset(token)
        await scenario(stage)

    stage.loop.run(main())


def test_a_connected_session_keeps_its_lease():
    async def scenario(stage: Stage) -> None:
        for _ in range(200):
            await asyncio.sleep(0.5)
            assert 0 < stage.lease_left_s <= LEASE_S

    play(scenario)


def test_a_lease_is_over_before_the_server_ends_the_session():
    async def scenario(stage: Stage) -> None:
        await stage.coord.multi([Create("/e", b"", ephemeral=True)])
        stage.coord.suspend()
        left_s = stage.lease_left_s
        await asyncio.sleep(left_s)
        assert not stage.coord.is_ended
        await asyncio.sleep(TIMEOUT_S)
        assert stage.coord.is_ended
        assert stage.server.get("/e") is None
        assert stage.coord.state is SessionState.SUSPENDED
        stage.coord.resume()
        assert stage.coord.state is SessionState.LOST

    play(scenario)


def test_a_session_that_comes_back_in_time_has_a_lease_again():
    async def scenario(stage: Stage) -> None:
        stage.coord.suspend()
        await asyncio.sleep(LEASE_S + 0.1)
        assert stage.lease_left_s < 0
        stage.coord.resume()
        await asyncio.sleep(TIMEOUT_S / 4)
        assert stage.lease_left_s > 0

    play(scenario)


def test_a_paused_host_says_connected_after_its_session_ended_but_has_no_lease():
    async def scenario(stage: Stage) -> None:
        stage.loop.pause(stage.host)
        await asyncio.sleep(TIMEOUT_S + 2)
        assert stage.coord.is_ended
        stage.loop.resume(stage.host)
        assert stage.coord.state is SessionState.CONNECTED
        assert stage.lease_left_s < 0
        await asyncio.sleep(0.1)
        assert stage.coord.state is SessionState.LOST

    play(scenario)


def test_a_host_whose_clock_stood_still_believes_in_its_lease():
    async def scenario(stage: Stage) -> None:
        stage.loop.pause(stage.host, clock_stops=True)
        await asyncio.sleep(TIMEOUT_S + 2)
        stage.loop.resume(stage.host)
        assert stage.coord.is_ended
        assert stage.lease_left_s > 0

    play(scenario)


def test_a_head_that_the_image_lacks_holds_up_the_lease():
    async def scenario(stage: Stage) -> None:
        await stage.coord.multi([Create("/head", b"1")])
        await asyncio.sleep(LEASE_S + 1)
        assert stage.lease_left_s < 0
        head = await stage.coord.get("/head")
        assert head is not None
        stage.coord.caught_up(head.version)
        assert stage.lease_left_s > 0

    play(scenario)


def test_changes_while_a_watch_is_on_its_way_are_told_at_once():
    async def scenario(stage: Stage) -> None:
        heard: list[str] = []
        stage.coord.watch("/a", heard.append)
        stage.coord.watch_delay_s_max = 5.0
        await stage.coord.multi([Create("/a", b"1")])
        await stage.coord.multi([Put("/a", b"2", 0)])
        await asyncio.sleep(6.0)
        assert heard == ["/a"]

    play(scenario)


def test_a_multi_in_doubt_is_done_now_or_later_or_never():
    async def scenario(stage: Stage) -> None:
        stage.coord.doubts_one_in = 1
        made: dict[str, bool] = {}
        for number in range(30):
            path = f"/n/{number:02}"
            with pytest.raises(StoreUnavailable):
                await stage.coord.multi([Create(path, b"")])
            made[path] = stage.server.get(path) is not None
        await asyncio.sleep(1.0)
        late = [one for one, at_once in made.items() if not at_once and stage.server.get(one)]
        never = [one for one in made if stage.server.get(one) is None]
        assert any(made.values())
        assert late
        assert never
        assert stage.coord.state is SessionState.CONNECTED

    play(scenario)


def test_a_server_without_its_quorum_answers_from_the_past_and_confirms_nothing():
    async def scenario(stage: Stage) -> None:
        other = stage.server.session()
        await other.start()
        await other.multi([Create("/a", b"old")])
        stage.coord.enter_minority()
        await other.multi([Put("/a", b"new", 0)])
        node = await stage.coord.get("/a")
        assert node is not None
        assert node.value == b"old"
        with pytest.raises(StoreUnavailable):
            await stage.coord.get("/a", newest=True)
        with pytest.raises(StoreUnavailable):
            await stage.coord.multi([Put("/a", b"x", 0)])
        await asyncio.sleep(TIMEOUT_S + 1)
        assert stage.coord.state is SessionState.CONNECTED
        assert stage.coord.is_ended
        assert stage.lease_left_s < 0
        stage.coord.leave_minority()
        assert stage.coord.state is SessionState.LOST

    play(scenario)


def test_a_conflict_is_told_when_nothing_is_in_doubt():
    async def scenario(stage: Stage) -> None:
        await stage.coord.multi([Create("/a", b"")])
        with pytest.raises(CoordConflict):
            await stage.coord.multi([Create("/a", b"")])

    play(scenario)


@pytest.mark.parametrize("fault", ["suspend", "enter_minority"])
def test_a_session_that_has_ended_does_not_come_back_by_a_fault_before_its_client_knows(fault):
    async def scenario(stage: Stage) -> None:
        stage.host.paused_at = stage.loop.time()
        stage.coord.expire()
        assert stage.coord.state is SessionState.CONNECTED
        getattr(stage.coord, fault)()
        await asyncio.sleep(1.0)
        if fault == "suspend":
            stage.coord.resume()
        else:
            stage.coord.leave_minority()
        assert stage.coord.is_ended
        with pytest.raises(StoreUnavailable):
            await stage.coord.get("/e")

    play(scenario)
