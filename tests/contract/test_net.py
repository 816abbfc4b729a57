"""What every network promises: the machine's and the simulated one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tests.support.coroutines import run
from tidemill.core.net import AsyncioNet, Net, ServerHandle
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.loop import SimHost, SimLoop
from tidemill.testing.sim.net import SimNet

HOST = "127.0.0.1"
WAIT_S = 10.0
LARGE_BYTES = 3_000_000


class Peer:
    """What both kinds of protocol record about their connection."""

    transport: asyncio.Transport

    def __init__(self, table: Table) -> None:
        self.received = bytearray()
        self.losses: list[Exception | None] = []
        self.write_pauses: list[str] = []
        self.table = table
        table.peers.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.table.changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.losses.append(error)
        self.table.changed.set()

    def pause_writing(self) -> None:
        self.write_pauses.append("pause")
        self.table.changed.set()

    def resume_writing(self) -> None:
        self.write_pauses.append("resume")
        self.table.changed.set()


class Streamed(Peer, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        assert data
        self.received += data
        self.table.changed.set()


class Buffered(Peer, asyncio.BufferedProtocol):
    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._space = bytearray(1000)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        assert 0 < nbytes <= len(self._space)
        self.received += self._space[:nbytes]
        self.table.changed.set()


class Table:
    """All peers of one scenario."""

    def __init__(self, net: Net, make: type[Peer]) -> None:
        self.net = net
        self.make = make
        self.peers: list[Peer] = []
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def factory(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self.make(self))

    async def listen(self) -> ServerHandle:
        return await self.net.listen(self.factory, HOST, 0)

    async def connect(self, address: tuple[str, int]) -> Peer:
        """Connect and return the client's end; the server's end exists by then."""
        count = len(self.peers)
        _, protocol = await self.net.connect(self.factory, *address)
        await self.until(lambda: len(self.peers) == count + 2)
        client = cast(Peer, protocol)
        served = next(peer for peer in self.peers[count:] if peer is not client)
        await self.until(lambda: hasattr(served, "transport"))
        return client

    async def pair(self) -> tuple[Peer, Peer]:
        """A client and the server's end of its connection; the listener is closed."""
        server = await self.listen()
        await server.start_serving()
        client = await self.connect(server.address)
        server.close()
        (served,) = [peer for peer in self.peers if peer is not client]
        return client, served

    async def end(self) -> None:
        for peer in self.peers:
            peer.transport.abort()
        await self.until(lambda: all(peer.losses for peer in self.peers))


Scenario = Callable[[Table], Awaitable[None]]
Play = Callable[..., None]


async def _whole(net: Net, make: type[Peer], scenario: Scenario) -> None:
    table = Table(net, make)
    async with asyncio.timeout(WAIT_S):
        await scenario(table)
        await table.end()


def _on_sockets(scenario: Scenario, make: type[Peer] = Streamed) -> None:
    run(_whole(AsyncioNet(), make, scenario))


def _simulated(scenario: Scenario, make: type[Peer] = Streamed) -> None:
    for seed in range(3):
        loop = SimLoop(SeededRng(seed))
        net = SimNet(loop, SeededRng(seed)).on(SimHost("one"))
        loop.run(_whole(net, make, scenario))


@pytest.fixture(params=[_on_sockets, _simulated], ids=["sockets", "simulated"])
def play(request: pytest.FixtureRequest) -> Play:
    return cast(Play, request.param)


@pytest.mark.parametrize("make", [Streamed, Buffered])
def test_bytes_arrive_whole_and_in_order_both_ways(play, make):
    async def scenario(table: Table) -> None:
        client, served = await table.pair()
        question = b"".join(n.to_bytes(4, "big") for n in range(50_000))
        for start in range(0, len(question), 777):
            client.transport.write(question[start : start + 777])
        served.transport.writelines([b"an", bytearray(b"sw"), memoryview(b"er")])
        await table.until(lambda: len(served.received) == len(question))
        await table.until(lambda: len(client.received) == 6)
        assert served.received == question
        assert client.received == b"answer"

    play(scenario, make)


def test_a_bound_address_refuses_until_it_serves(play):
    async def scenario(table: Table) -> None:
        server = await table.listen()
        host, port = server.address
        assert host == HOST
        assert port > 0
        with pytest.raises(ConnectionRefusedError):
            await table.net.connect(table.factory, host, port)
        await server.start_serving()
        await table.connect((host, port))
        server.close()

    play(scenario)


def test_a_closed_listener_refuses_and_keeps_its_connections(play):
    async def scenario(table: Table) -> None:
        server = await table.listen()
        await server.start_serving()
        address = server.address
        client = await table.connect(address)
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await table.net.connect(table.factory, *address)
        client.transport.write(b"still here")
        await table.until(lambda: any(peer.received == b"still here" for peer in table.peers))

    play(scenario)


def test_an_address_can_be_bound_once(play):
    async def scenario(table: Table) -> None:
        server = await table.listen()
        await server.start_serving()
        with pytest.raises(OSError, match="in use"):
            await table.net.listen(table.factory, *server.address)
        server.close()

    play(scenario)


def test_both_ends_agree_on_their_addresses(play):
    async def scenario(table: Table) -> None:
        client, served = await table.pair()
        ours, theirs = client.transport.get_extra_info, served.transport.get_extra_info
        assert ours("sockname") == theirs("peername")
        assert ours("peername") == theirs("sockname")
        assert ours("sockname") != ours("peername")
        assert ours("peername")[0] == HOST

    play(scenario)


def test_close_first_sends_what_was_written(play):
    async def scenario(table: Table) -> None:
        client, served = await table.pair()
        client.transport.write(bytes(LARGE_BYTES))
        client.transport.close()
        assert client.transport.is_closing()
        await table.until(lambda: bool(served.losses and client.losses))
        assert len(served.received) == LARGE_BYTES
        assert client.losses == [None]
        assert served.losses == [None]

    play(scenario)


def test_closing_twice_and_then_aborting_reports_one_loss(play):
    async def scenario(table: Table) -> None:
        client, served = await table.pair()
        client.transport.close()
        client.transport.close()
        client.transport.abort()
        await table.until(lambda: bool(served.losses and client.losses))
        assert len(client.losses) == len(served.losses) == 1

    play(scenario)


def test_abort_drops_unsent_bytes_and_ends_both_sides(play):
    async def scenario(table: Table) -> None:
        client, served = await table.pair()
        served.transport.pause_reading()
        client.transport.write(bytes(4 * LARGE_BYTES))
        client.transport.abort()
        await table.until(lambda: bool(client.losses))
        assert client.losses == [None]
        served.transport.resume_reading()
        await table.until(lambda: bool(served.losses))
        assert len(served.received) < 4 * LARGE_BYTES

    play(scenario)


def test_a_connection_may_be_refused_the_moment_it_is_made(play):
    async def scenario(table: Table) -> None:
        class Inhospitable(Streamed):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                self.transport.abort()

        table.make = Inhospitable
        server = await table.listen()
        await server.start_serving()
        table.make = Streamed
        client = Streamed(table)
        table.make = Inhospitable
        await table.net.connect(lambda: client, *server.address)
        await table.until(lambda: len(table.peers) == 2 and all(p.losses for p in table.peers))
        assert [len(peer.losses) for peer in table.peers] == [1, 1]
        server.close()

    play(scenario)


def test_bytes_written_after_the_end_are_dropped_silently(play):
    async def scenario(table: Table) -> None:
        client, served = await table.pair()
        client.transport.abort()
        await table.until(lambda: bool(client.losses))
        client.transport.write(b"too late")
        client.transport.writelines([b"too", b"late"])
        await table.until(lambda: bool(served.losses))
        assert served.received == b""

    play(scenario)


@pytest.mark.parametrize("make", [Streamed, Buffered])
def test_a_receiver_that_does_not_read_stops_the_sender(play, make):
    async def scenario(table: Table) -> None:
        client, served = await table.pair()
        client.transport.set_write_buffer_limits(high=100_000, low=10_000)
        served.transport.pause_reading()
        written = 0
        while not client.write_pauses:
            client.transport.write(bytes(64_000))
            written += 64_000
            await asyncio.sleep(0)
        assert client.transport.get_write_buffer_size() > 100_000
        assert not served.received
        served.transport.resume_reading()
        await table.until(lambda: client.write_pauses == ["pause", "resume"])
        assert client.transport.get_write_buffer_size() <= 10_000
        await table.until(lambda: len(served.received) == written)

    play(scenario, make)


def test_reading_can_be_paused_after_every_piece(play):
    async def scenario(table: Table) -> None:
        class Reluctant(Streamed):
            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                self.transport.pause_reading()
                self.transport.pause_reading()

        table.make = Reluctant
        client, served = await table.pair()
        client.transport.write(bytes(1_000_000))
        turns = 0
        while len(served.received) < 1_000_000:
            await table.until(lambda: not served.transport.is_reading())
            served.transport.resume_reading()
            turns += 1
        assert turns > 1

    play(scenario)


def test_a_connection_to_an_unbound_address_is_refused(play):
    async def scenario(table: Table) -> None:
        server = await table.listen()
        address = server.address
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await table.net.connect(table.factory, *address)

    play(scenario)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "a\0b", "\ud800"])
def test_a_connection_to_what_is_no_name_of_a_host_is_refused(play, host):
    async def scenario(table: Table) -> None:
        with pytest.raises(OSError, match=r"."):
            await table.net.connect(table.factory, host, 9092)

    play(scenario)
