"""A `Net` without sockets: both ends of a connection are in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Server(Protocol):
    """Accepts connections: receives bytes, and sends bytes back with `MemoryTransport.feed`."""

    def connected(self, transport: MemoryTransport) -> None: ...

    def received(self, transport: MemoryTransport, data: bytes) -> None: ...


class MemoryTransport(asyncio.Transport):
    """The client's end; what it writes reaches the server in the loop's next turn."""

    def __init__(self, protocol: asyncio.BufferedProtocol, server: Server) -> None:
        super().__init__()
        self.server = server
        self.read_bytes_max = 1 << 20
        """The most bytes that one read returns; 1 feeds byte by byte."""
        self._protocol = protocol
        self._closing = False
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._loop.call_soon(self.server.received, self, bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, error)

    # --- what the server does --------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Bytes from the server reach the client in the loop's next turn."""
        self._loop.call_soon(self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        while data and not self._closing:
            space = self._protocol.get_buffer(-1)
            count = min(len(space), len(data), self.read_bytes_max)
            space[:count] = data[:count]
            self._protocol.buffer_updated(count)
            data = data[count:]

    def break_off(self, error: Exception | None = None) -> None:
        """The server or the network ends the connection."""
        self._end(error)


class MemoryNet:
    """Addresses to servers; connecting to any other address is refused."""

    def __init__(self, servers: dict[tuple[str, int], Server]) -> None:
        self.servers = servers
        self.connections: list[tuple[str, int]] = []

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        await asyncio.sleep(0)
        server = self.servers.get((host, port))
        if server is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self.connections.append((host, port))
        protocol = factory()
        assert isinstance(protocol, asyncio.BufferedProtocol)
        transport = MemoryTransport(protocol, server)
        protocol.connection_made(transport)
        server.connected(transport)
        return transport, protocol

    async def listen(self, factory: object, host: str, port: int) -> object:
        raise NotImplementedError
