"""A network in memory: the Net seam for many hosts on one simulated loop.

`SimNet` knows the listeners and the faults; `SimNet.on(host)` is the seam as one host sees it.
`connection` models a connection.

Faults. `cut` stops one direction between two hosts: bytes wait, as with TCP's retransmissions,
until `heal`; new connections wait too. A host that crashes sends RST on all its connections (the
kernel outlives the process). If the machine died with it, it sends nothing: peers find out when
they send to the next life of that host, or by their own deadlines. A paused host's kernel goes on:
it accepts connections and receives until the window is full. `damage` changes bytes on their way.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from typing import final

from tidemill.core.net import ServerHandle
from tidemill.core.rng import Rng
from tidemill.testing.sim.connection import (
    RETRANSMIT_S,
    Address,
    Damage,
    End,
    Link,
    Medium,
    Observer,
    connect_ends,
)
from tidemill.testing.sim.loop import SimHost, SimLoop

__all__ = ["HostNet", "Link", "SimNet"]

Factory = Callable[[], asyncio.BaseProtocol]

OWN_NAMES = frozenset({"127.0.0.1", "localhost", "0.0.0.0", "::1", ""})  # noqa: S104 - no socket
FIRST_FREE_PORT = 49_152


def _ignore(_what: str, _where: str, _data: bytes) -> None:
    """The default observer."""


@final
class _Server:
    """A listening address of one host."""

    def __init__(self, net: SimNet, host: SimHost, factory: Factory, address: Address) -> None:
        self.host = host
        self.address = address
        self.serving = False
        self._net = net
        self._factory = factory
        self._context = copy_context()

    async def start_serving(self) -> None:
        self.serving = True

    def close(self) -> None:
        self._net.unbind(self)

    def accept(self, end: End) -> None:
        if self.host.paused_at is not None:  # in the kernel's queue
            self.host.on_resume.append(partial(self.accept, end))
            return
        context = self._context.copy()
        end.open(self._net.medium.run_on(self.host, context, self._factory), context)


@final
class HostNet:
    """The Net seam as one host sees it: its own name and the loopback names mean itself."""

    def __init__(self, net: SimNet, host: SimHost) -> None:
        self._net = net
        self._host = host

    async def listen(self, factory: Factory, host: str, port: int) -> ServerHandle:
        if host not in OWN_NAMES and host != self._host.name:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is no address of {self._host.name}")
        return self._net.bind(self._host, factory, host, port)

    async def connect(
        self, factory: Factory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        name = self._host.name
        server = await self._reach(name if host in OWN_NAMES else host, port)
        own_address = (host if host in OWN_NAMES else name, self._net.free_port())
        own, other = connect_ends(
            self._net.medium, (self._host, own_address), (server.host, (host, port))
        )
        server.accept(other)
        try:
            await self._travel()
        except BaseException:
            own.lose(None)
            raise
        protocol = factory()
        own.open(protocol, copy_context())
        return own, protocol

    async def _reach(self, target: str, port: int) -> _Server:
        """Retry until both directions are open; ConnectionRefusedError if nothing listens there."""
        await self._travel()
        own, passes = self._host.name, self._net.medium.passes
        while not (passes(own, target) and passes(target, own)):  # noqa: ASYNC110 - as TCP does
            await asyncio.sleep(RETRANSMIT_S)
        server = self._net.try_find_server(target, port)
        if server is None:
            await self._travel()
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{target}:{port}")
        return server

    async def _travel(self) -> None:
        await asyncio.sleep(self._net.medium.draw_delay_s())


@final
class SimNet:
    """All listeners and connections, and the faults between them."""

    def __init__(
        self,
        loop: SimLoop,
        rng: Rng,
        *,
        link: Link | None = None,
        observe: Observer = _ignore,
    ) -> None:
        self.medium = Medium(loop, rng, link or Link(), observe)
        self._servers: dict[Address, _Server] = {}
        """By host name and port; bound once `listen` was called."""
        self._next_port = FIRST_FREE_PORT

    def on(self, host: SimHost) -> HostNet:
        """The network as `host` sees it; a host's new life is reachable again."""
        self.medium.down.discard(host.name)
        return HostNet(self, host)

    # --- faults ----------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Stop everything from `source` to `target`; the other direction stays."""
        self.medium.cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        self.medium.cuts.discard((source, target))

    def isolate(self, name: str, others: Iterable[str]) -> None:
        """Cut a host off from others in both directions."""
        for other in others:
            self.cut(name, other)
            self.cut(other, name)

    def damage(self, source: str, target: str, damage: Damage) -> None:
        """Change what is sent from `source` to `target`, as bad memory in a switch does."""
        self.medium.damages[source, target] = damage

    def heal_all(self) -> None:
        self.medium.cuts.clear()
        self.medium.damages.clear()

    def crash(self, host: SimHost, *, silent: bool = False) -> None:
        """End a process at once. `silent`: its machine too, so peers are not told."""
        if silent:
            self.medium.down.add(host.name)
        for server in [one for one in self._servers.values() if one.host is host]:
            self.unbind(server)
        for end in [end for end in self.medium.ends if end.host is host]:
            end.die(silent=silent)

    def resumed(self, host: SimHost) -> None:
        """A host goes on after a pause, and finds what arrived meanwhile."""
        for end in [end for end in self.medium.ends if end.host is host]:
            end.resumed()

    def reset_between(self, one: str, other: str) -> None:
        """Break every connection from one host to another, as a stateless firewall would."""
        for end in list(self.medium.ends):
            if end.host.name == one and end.get_extra_info("peername")[0] == other:
                end.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    # --- listeners -------------------------------------------------------------------------------

    def bind(self, host: SimHost, factory: Factory, asked: str, port: int) -> _Server:
        port = port or self.free_port()
        if (host.name, port) in self._servers:
            raise OSError(errno.EADDRINUSE, f"{host.name}:{port} is in use")
        server = _Server(self, host, factory, (asked, port))
        self._servers[host.name, port] = server
        return server

    def unbind(self, server: _Server) -> None:
        place = (server.host.name, server.address[1])
        if self._servers.get(place) is server:
            del self._servers[place]

    def try_find_server(self, name: str, port: int) -> _Server | None:
        """The server that accepts connections at this address."""
        server = self._servers.get((name, port))
        return server if server is not None and server.serving else None

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port
