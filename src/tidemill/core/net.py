"""The Net seam: the only place that opens sockets. A simulation has its own implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, final

__all__ = ["AsyncioNet", "Net", "ServerHandle"]


class ServerHandle(Protocol):
    """A listening socket."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that were bound; a requested port 0 takes a free one."""
        ...

    async def start_serving(self) -> None:
        """Accept connections; before this call they are refused."""
        ...

    def close(self) -> None:
        """Stop accepting; open connections stay open."""
        ...


class Net(Protocol):
    """Listen and connect; everything else goes through asyncio's transports."""

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> ServerHandle:
        """Bind host:port; OSError if the address cannot be bound."""
        ...

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection; OSError if it is refused."""
        ...


@final
class _AsyncioServer:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def start_serving(self) -> None:
        await self._server.start_serving()

    def close(self) -> None:
        self._server.close()


@final
class AsyncioNet:
    """TCP through the running event loop: uvloop in production, any loop in tests."""

    LISTEN_BACKLOG = 1024

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> ServerHandle:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            factory, host, port, backlog=self.LISTEN_BACKLOG, start_serving=False
        )
        return _AsyncioServer(server)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_connection(factory, host, port)
        except ValueError as error:  # not even a name that could be looked up
            raise OSError(f"{host!a} is not the name of a host") from error
