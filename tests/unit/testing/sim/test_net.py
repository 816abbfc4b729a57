"""The simulated network must behave at least as badly as a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tidemill.core.rng import SeededRng
from tidemill.testing.sim.loop import SimHost, SimLoop
from tidemill.testing.sim.net import Link, SimNet

PORT = 9092


class Peer(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.losses: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.losses.append(error)

    @property
    def received(self) -> bytes:
        return b"".join(self.pieces)


class World:
    """Hosts `client` and `server`, the second one listening."""

    def __init__(self, net: SimNet, loop: SimLoop) -> None:
        self.net = net
        self.loop = loop
        self.accepted: list[Peer] = []
        self.client = SimHost("client")
        self.server = SimHost("server")

    async def serve(self) -> None:
        listening = await self.net.on(self.server).listen(self._accept, "server", PORT)
        await listening.start_serving()

    def _accept(self) -> Peer:
        self.accepted.append(Peer())
        return self.accepted[-1]

    async def connect(self) -> tuple[Peer, Peer]:
        peer = Peer()
        await self.net.on(self.client).connect(lambda: peer, "server", PORT)
        return peer, self.accepted[-1]

    def kill_server(self, *, silent: bool) -> None:
        self.loop.kill(self.server)
        self.net.crash(self.server, silent=silent)


def run(
    scenario: Callable[[World], Awaitable[None]], *, seed: int = 1, link: Link | None = None
) -> None:
    loop = SimLoop(SeededRng(seed))

    async def main() -> None:
        world = World(SimNet(loop, SeededRng(seed), link=link), loop)
        await world.serve()
        await scenario(world)

    loop.run(main())


def test_bytes_come_in_pieces_of_many_sizes_but_in_order():
    sizes: set[int] = set()
    message = bytes(range(256)) * 400

    async def scenario(world: World) -> None:
        client, served = await world.connect()
        client.transport.write(message)
        await asyncio.sleep(1.0)
        assert served.received == message
        sizes.update(map(len, served.pieces))

    for seed in range(10):
        run(scenario, seed=seed)
    assert len(sizes) > 20
    assert min(sizes) <= 16


def test_each_connection_has_its_own_delay():
    arrivals: set[tuple[bool, ...]] = set()

    async def scenario(world: World) -> None:
        pairs = [await world.connect() for _ in range(5)]
        for client, _ in pairs:
            client.transport.write(b"x")
        await asyncio.sleep(0.0007)  # some of them have it by now, but probably not all
        arrivals.add(tuple(bool(served.received) for _, served in pairs))

    for seed in range(20):
        run(scenario, seed=seed)
    assert len(arrivals) > 5


def test_a_cut_holds_bytes_back_in_one_direction_until_it_heals():
    async def scenario(world: World) -> None:
        client, served = await world.connect()
        world.net.cut("client", "server")
        client.transport.write(b"question")
        served.transport.write(b"news")
        await asyncio.sleep(60.0)
        assert served.received == b""
        assert client.received == b"news"
        world.net.heal("client", "server")
        await asyncio.sleep(1.0)
        assert served.received == b"question"

    run(scenario)


@pytest.mark.parametrize("direction", [("client", "server"), ("server", "client")])
def test_a_connection_needs_both_directions(direction):
    async def scenario(world: World) -> None:
        world.net.cut(*direction)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0):
                await world.connect()
        world.net.heal(*direction)
        await world.connect()

    run(scenario)


def test_a_killed_process_resets_its_connections_and_receives_nothing():
    async def scenario(world: World) -> None:
        client, served = await world.connect()
        world.kill_server(silent=False)
        await asyncio.sleep(1.0)
        assert [type(loss) for loss in client.losses] == [ConnectionResetError]
        assert served.losses == []
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    run(scenario)


def test_a_dead_machine_sends_nothing_until_it_is_up_again():
    async def scenario(world: World) -> None:
        client, served = await world.connect()
        world.kill_server(silent=True)
        client.transport.write(b"anybody there?")
        await asyncio.sleep(60.0)
        assert client.losses == []
        world.server = SimHost("server")
        await world.serve()
        await asyncio.sleep(1.0)
        assert [type(loss) for loss in client.losses] == [ConnectionResetError]
        assert served.pieces == []

    run(scenario)


def test_bytes_on_the_wire_arrive_even_if_their_sender_is_dead():
    async def scenario(world: World) -> None:
        client, served = await world.connect()
        served.transport.write(b"last words")
        world.kill_server(silent=False)
        await asyncio.sleep(1.0)
        assert client.received == b"last words"

    run(scenario)


def test_bytes_that_a_cut_stopped_never_arrive_if_their_sender_lost_power():
    async def scenario(world: World) -> None:
        client, served = await world.connect()
        world.net.cut("server", "client")
        served.transport.write(b"nobody is left to repeat this")
        await asyncio.sleep(1.0)
        world.kill_server(silent=True)
        world.net.heal("server", "client")
        await asyncio.sleep(1.0)
        assert client.received == b""

    run(scenario)


def test_a_window_bounds_the_bytes_in_transit():
    async def scenario(world: World) -> None:
        client, served = await world.connect()
        served.transport.pause_reading()
        client.transport.write(bytes(10_000))
        await asyncio.sleep(1.0)
        assert client.transport.get_write_buffer_size() == 9_000
        served.transport.resume_reading()
        await asyncio.sleep(1.0)
        assert len(served.received) == 10_000

    run(scenario, link=Link(window_bytes=1_000))


def test_a_reset_breaks_both_sides():
    async def scenario(world: World) -> None:
        client, served = await world.connect()
        world.net.reset_between("client", "server")
        await asyncio.sleep(1.0)
        assert len(client.losses) == len(served.losses) == 1

    run(scenario)


def test_a_closed_end_resets_a_peer_that_keeps_sending():
    async def scenario(world: World) -> None:
        client, served = await world.connect()
        client.transport.write(bytes(1_000_000))
        served.transport.close()
        await asyncio.sleep(5.0)
        assert len(client.losses) == 1
        assert served.losses == [None]

    run(scenario)


def test_a_paused_host_finds_connections_and_bytes_when_it_goes_on():
    async def scenario(world: World) -> None:
        client, server = await world.connect()
        world.loop.pause(world.server)
        client.transport.write(b"while you slept")
        late = Peer()
        await world.net.on(world.client).connect(lambda: late, "server", PORT)
        await asyncio.sleep(10.0)
        assert server.received == b""
        assert len(world.accepted) == 1
        world.loop.resume(world.server)
        world.net.resumed(world.server)
        await asyncio.sleep(1.0)
        assert server.received == b"while you slept"
        assert len(world.accepted) == 2

    run(scenario)


def test_a_paused_host_learns_of_a_reset_when_it_goes_on():
    async def scenario(world: World) -> None:
        client, server = await world.connect()
        world.loop.pause(world.server)
        client.transport.abort()
        await asyncio.sleep(10.0)
        assert server.losses == []
        world.loop.resume(world.server)
        world.net.resumed(world.server)
        await asyncio.sleep(1.0)
        assert len(server.losses) == 1

    run(scenario)
