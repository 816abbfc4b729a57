"""A network in memory: the Net seam for many hosts on one simulated loop.

Theory of operation. A connection is two pipes, one for each direction. A pipe is what TCP makes of
a link: bytes keep their order and come in pieces of any size, after a delay that belongs to the
pipe. What was written passes through three places:

    backlog (the sender's transport)  ->  wire (on its way)  ->  unread (the receiver's socket)

The wire and `unread` together hold at most a window. A receiver that does not read fills it, then
the sender's backlog grows, and beyond the high-water mark its protocol is told to pause.

The end of a connection travels through the pipe like data: FIN behind the last byte, RST instead of
the bytes that were not sent yet. `cut` stops one direction between two hosts: bytes wait, as with
TCP's retransmissions, until `heal`; new connections wait too. A host that crashes sends RST on all
its connections (the kernel outlives the process), or, where the machine died with it, nothing:
peers then find out by sending to the next life of that host, or by their own deadlines.

Protocols are called in the context of their host, so that what they start belongs to it. Pipes run
in no host's context: what is on the wire arrives even if its sender is dead.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

from tidemill.core.limits import KIB
from tidemill.core.net import ServerHandle
from tidemill.core.rng import Rng
from tidemill.testing.sim_loop import CURRENT_HOST, SimHost

__all__ = ["HostNet", "Link", "SimNet"]

Factory = Callable[[], asyncio.BaseProtocol]
Address = tuple[str, int]
Observer = Callable[[str, str, bytes], None]
"""Told what happened, where, and with which bytes."""

OWN_NAMES = frozenset({"127.0.0.1", "localhost", "0.0.0.0", "::1", ""})  # noqa: S104 - no socket
FIRST_FREE_PORT = 49_152
RETRANSMIT_S = 0.2
WRITE_HIGH_WATER_BYTES = 64 * KIB
SMALL_PIECE_ONE_IN = 8
SMALL_PIECE_BYTES_MAX = 16
RNG_STEPS = 1_000_000


class _Signal(Enum):
    """What travels through a pipe beside bytes."""

    FIN = "fin"
    RST = "rst"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What the network is like."""

    delay_s_min: float = 0.0001
    delay_s_max: float = 0.002
    piece_bytes_max: int = 16 * KIB
    window_bytes: int = 64 * KIB


@final
class _Pipe:
    """One direction of a connection."""

    def __init__(self, net: SimNet, source: _End, target: _End) -> None:
        self.backlog = bytearray()
        self.unread = bytearray()
        self._net = net
        self._source = source
        self._target = target
        self._wire: deque[tuple[float, bytes | _Signal]] = deque()
        self._wire_bytes = 0
        self._delay_s = net.draw_delay_s()
        self._last_arrival = 0.0
        self._arrival_is_set = False
        self._ack_is_set = False
        self._ending = False
        self._ended = False

    @property
    def is_cut(self) -> bool:
        return self._net.is_cut(self._source.host.name, self._target.host.name)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        self.backlog += data
        self.pump()

    def pump(self) -> None:
        """Put on the wire what the window lets through, and FIN behind the last byte."""
        while self.backlog and (room := self._room()) > 0:
            size = min(room, len(self.backlog), self._net.draw_piece_bytes())
            self._put(bytes(self.backlog[:size]))
            del self.backlog[:size]
        if self._ending and not self.backlog:
            self._end(_Signal.FIN)

    def finish(self) -> None:
        """Nothing more will be sent: FIN goes when the backlog is gone."""
        self._ending = True
        self.pump()

    def reset(self) -> None:
        """Drop what was not sent and say so."""
        self.backlog.clear()
        self._end(_Signal.RST)

    def read_some(self, count: int) -> bytes:
        """The receiver takes bytes; the sender hears of the room if it waits for it."""
        data = bytes(self.unread[:count])
        del self.unread[:count]
        self._make_room()
        return data

    def _room(self) -> int:
        return self._net.link.window_bytes - self._wire_bytes - len(self.unread)

    def _end(self, signal: _Signal) -> None:
        if not self._ended:
            self._ended = True
            self._put(signal)

    def _put(self, item: bytes | _Signal) -> None:
        arrival = self._net.time() + self._delay_s + self._net.draw_jitter_s()
        self._last_arrival = max(self._last_arrival, arrival)
        self._wire.append((self._last_arrival, item))
        if isinstance(item, bytes):
            self._wire_bytes += len(item)
        self._await_arrival()

    def _await_arrival(self) -> None:
        if self._wire and not self._arrival_is_set:
            self._arrival_is_set = True
            self._net.call_at(self._wire[0][0], self._arrive)

    def _arrive(self) -> None:
        if self.is_cut:
            self._net.call_at(self._net.time() + RETRANSMIT_S, self._arrive)
            return
        self._arrival_is_set = False
        _, item = self._wire.popleft()
        self._await_arrival()
        if isinstance(item, bytes):
            self._wire_bytes -= len(item)
        self._target.arrived(item)

    def _make_room(self) -> None:
        if (self.backlog or self._ending) and not self._ack_is_set:
            self._ack_is_set = True
            self._net.call_at(self._net.time() + self._delay_s, self._acknowledged)

    def _acknowledged(self) -> None:
        self._ack_is_set = False
        self._source.room_came()


@final
class _End(asyncio.Transport):
    """One end of a connection: the transport that a protocol gets."""

    def __init__(self, net: SimNet, host: SimHost, sockname: Address, peername: Address) -> None:
        super().__init__({"sockname": sockname, "peername": peername})
        self.host = host
        self.name = f"{sockname[0]}:{sockname[1]}>{peername[0]}:{peername[1]}"
        self._net = net
        self._protocol: asyncio.BaseProtocol | None = None
        self._context = Context()
        self._high = WRITE_HIGH_WATER_BYTES
        self._low = WRITE_HIGH_WATER_BYTES // 4
        self._write_paused = False
        self._reading = True
        self._eof_waits = False
        self._closing = False
        self._lost = False

    def join(self, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._outgoing = outgoing
        self._incoming = incoming

    def open(self, protocol: asyncio.BaseProtocol, context: Context) -> None:
        """Give the connection to its protocol, which runs in `context` from now on."""
        self._protocol = protocol
        self._context = context
        self._call(protocol.connection_made, self)
        self._net.call_soon(self._deliver)

    # --- asyncio.Transport -----------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._outgoing.send(data)
        self._maybe_pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._outgoing.finish()
        self._maybe_lose()

    def abort(self) -> None:
        self.lose(None)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._net.call_soon(self._deliver)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = WRITE_HIGH_WATER_BYTES if low is None else 4 * low
        self._high = high
        self._low = high // 4 if low is None else low
        self._maybe_pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self._outgoing.backlog)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def can_write_eof(self) -> bool:
        return False

    # --- what comes through the pipes ------------------------------------------------------------

    def arrived(self, item: bytes | _Signal) -> None:
        if not self.host.alive or self._lost:
            self._refuse(item)
        elif item is _Signal.RST:
            self.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        elif item is _Signal.FIN:
            self._eof_waits = True
            self._deliver()
        else:
            assert isinstance(item, bytes)
            self._net.observe("receive", self.name, item)
            self._incoming.unread += item
            self._deliver()

    def room_came(self) -> None:
        """The peer has read: more of the backlog may go."""
        if self._lost or not self.host.alive:
            return
        self._outgoing.pump()
        if self._write_paused and len(self._outgoing.backlog) <= self._low:
            self._write_paused = False
            self._call(self.get_protocol().resume_writing)
        self._maybe_lose()

    def lose(self, error: Exception | None) -> None:
        """The connection is over, whatever was on its way; the peer gets RST."""
        if self._lost:
            return
        self._closing = self._lost = True
        self._outgoing.reset()
        self._incoming.unread.clear()
        self._net.forget(self)
        self._net.call_soon(self._report_lost, error)

    def die(self, *, silent: bool) -> None:
        """The process is gone: its protocol hears nothing more; the kernel resets, if it lives."""
        self._closing = self._lost = True
        if not silent:
            self._outgoing.reset()

    def _refuse(self, item: bytes | _Signal) -> None:
        """Nobody is here any more. A living machine says so, a dead one says nothing."""
        if item is not _Signal.RST and self._net.is_up(self.host.name):
            self._outgoing.reset()

    def _deliver(self) -> None:
        """Hand over what has arrived, until there is no more or the protocol has enough."""
        incoming = self._incoming
        while incoming.unread and self._may_deliver():
            self._hand_over(incoming)
        if self._eof_waits and not incoming.unread and self._may_deliver():
            self._eof_waits = False
            self._net.observe("eof", self.name, b"")
            protocol = self.get_protocol()
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not self._call(protocol.eof_received):
                self.close()

    def _may_deliver(self) -> bool:
        open_ = self._protocol is not None and not self._closing
        return open_ and self._reading and self.host.alive

    def _hand_over(self, incoming: _Pipe) -> None:
        protocol = self.get_protocol()
        if not isinstance(protocol, asyncio.BufferedProtocol):
            assert isinstance(protocol, asyncio.Protocol)
            self._call(protocol.data_received, incoming.read_some(len(incoming.unread)))
            return
        space = self._call(protocol.get_buffer, -1)
        if space is None or self._closing:
            return
        view = memoryview(space)
        if not len(view):
            raise RuntimeError(f"{protocol!r} has no room, but did not pause")
        data = incoming.read_some(len(view))
        view[: len(data)] = data
        self._call(protocol.buffer_updated, len(data))

    def _call(self, method: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 - any method
        """Call the protocol on its host. As in asyncio, a failure ends the connection."""
        try:
            return self._context.run(method, *args)
        except Exception as error:  # noqa: BLE001 - the boundary that asyncio has here, too
            self._net.report_failure(f"{self.name}: {method!r} failed", error)
            self.lose(error)
            return None

    def _report_lost(self, error: Exception | None) -> None:
        if self.host.alive and self._protocol is not None:
            self._net.observe("lost", self.name, b"")
            self._call(self._protocol.connection_lost, error)

    def _maybe_lose(self) -> None:
        """After `close`: over once everything was sent."""
        if self._closing and not self._lost and not self._outgoing.backlog:
            self._lost = True
            self._net.forget(self)
            self._net.call_soon(self._report_lost, None)

    def _maybe_pause_writing(self) -> None:
        if not self._write_paused and len(self._outgoing.backlog) > self._high:
            self._write_paused = True
            self.get_protocol().pause_writing()


@final
class _Server:
    """A listening address of one host."""

    def __init__(self, net: SimNet, host: SimHost, factory: Factory, address: Address) -> None:
        self.host = host
        self.serving = False
        self._net = net
        self._factory = factory
        self._address = address
        self._context = copy_context()

    @property
    def address(self) -> Address:
        return self._address

    async def start_serving(self) -> None:
        self.serving = True

    def close(self) -> None:
        self.serving = False
        self._net.unbind(self.host.name, self._address[1])

    def accept(self, end: _End) -> None:
        context = self._context.copy()
        end.open(context.run(self._factory), context)


@final
class HostNet:
    """The Net seam as one host sees it. Its own names are loopback names and its host name."""

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
        target = self._host.name if host in OWN_NAMES else host
        server = await self._reach(target, port)
        own, other = self._net.join(self._host, (host, port), server.host)
        server.accept(other)
        try:
            await asyncio.sleep(self._net.draw_delay_s())
        except BaseException:
            own.lose(None)
            raise
        protocol = factory()
        own.open(protocol, copy_context())
        return own, protocol

    async def _reach(self, target: str, port: int) -> _Server:
        """Knock until the way there and back is free; ConnectionRefusedError if nobody listens."""
        await asyncio.sleep(self._net.draw_delay_s())
        own = self._host.name
        while self._net.is_cut(own, target) or self._net.is_cut(target, own):
            await asyncio.sleep(RETRANSMIT_S)
        server = self._net.find_server(target, port)
        if server is None:
            await asyncio.sleep(self._net.draw_delay_s())
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{target}:{port}")
        return server


@final
class SimNet:
    """All hosts, listeners and connections, and what is broken between them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: Rng,
        *,
        link: Link | None = None,
        observe: Observer = lambda _what, _where, _data: None,
    ) -> None:
        self.link = link or Link()
        self.observe = observe
        self._loop = loop
        self._rng = rng
        self._context = Context()
        self._context.run(CURRENT_HOST.set, None)
        self._servers: dict[Address, _Server] = {}
        self._ends: dict[_End, None] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        self._next_port = FIRST_FREE_PORT

    def on(self, host: SimHost) -> HostNet:
        """The network as `host` sees it; a new life of a host is up again."""
        self._down.discard(host.name)
        return HostNet(self, host)

    # --- faults ----------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` any more; the other direction stays."""
        self._cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        self._cuts.discard((source, target))

    def isolate(self, name: str, others: Iterable[str]) -> None:
        """Cut a host off in both directions."""
        for other in others:
            self.cut(name, other)
            self.cut(other, name)

    def heal_all(self) -> None:
        self._cuts.clear()

    def crash(self, host: SimHost, *, silent: bool = False) -> None:
        """A process ends at once. `silent`: its machine with it, so that nobody is told."""
        self._down.add(host.name)
        for address in [a for a, server in self._servers.items() if server.host is host]:
            del self._servers[address]
        for end in [end for end in self._ends if end.host is host]:
            self.forget(end)
            end.die(silent=silent)

    def reset_between(self, one: str, other: str) -> None:
        """Break every connection between two hosts, as a firewall that lost its table would."""
        for end in list(self._ends):
            peer: Address = end.get_extra_info("peername")
            if end.host.name == one and peer[0] == other:
                end.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def is_up(self, name: str) -> bool:
        return name not in self._down

    # --- listeners and connections ---------------------------------------------------------------

    def bind(self, host: SimHost, factory: Factory, asked: str, port: int) -> _Server:
        port = port or self._free_port()
        if (host.name, port) in self._servers:
            raise OSError(errno.EADDRINUSE, f"{host.name}:{port} is in use")
        server = _Server(self, host, factory, (asked, port))
        self._servers[host.name, port] = server
        return server

    def unbind(self, name: str, port: int) -> None:
        self._servers.pop((name, port), None)

    def find_server(self, name: str, port: int) -> _Server | None:
        server = self._servers.get((name, port))
        return server if server is not None and server.serving else None

    def join(self, host: SimHost, target: Address, other: SimHost) -> tuple[_End, _End]:
        """Both ends of a new connection."""
        address = (host.name if target[0] not in OWN_NAMES else target[0], self._free_port())
        ends = _End(self, host, address, target), _End(self, other, target, address)
        there, back = _Pipe(self, *ends), _Pipe(self, *reversed(ends))
        ends[0].join(there, back)
        ends[1].join(back, there)
        self._ends.update(dict.fromkeys(ends))
        self.observe("connect", ends[0].name, b"")
        return ends

    def forget(self, end: _End) -> None:
        self._ends.pop(end, None)

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    # --- time and chance -------------------------------------------------------------------------

    def time(self) -> float:
        return self._loop.time()

    def call_at(self, when: float, action: Callable[..., None], *args: object) -> None:
        self._loop.call_at(when, action, *args, context=self._context)

    def call_soon(self, action: Callable[..., None], *args: object) -> None:
        self._loop.call_soon(action, *args, context=self._context)

    def report_failure(self, message: str, error: Exception) -> None:
        self._loop.call_exception_handler({"message": message, "exception": error})

    def draw_delay_s(self) -> float:
        shortest, longest = self.link.delay_s_min, self.link.delay_s_max
        return shortest + (longest - shortest) * self._rng.below(RNG_STEPS) / RNG_STEPS

    def draw_jitter_s(self) -> float:
        return self.link.delay_s_min * self._rng.below(RNG_STEPS) / RNG_STEPS

    def draw_piece_bytes(self) -> int:
        """Mostly large pieces, and often enough a few bytes: frames must not count on their cuts."""
        small = self._rng.below(SMALL_PIECE_ONE_IN) == 0
        largest = SMALL_PIECE_BYTES_MAX if small else self.link.piece_bytes_max
        return 1 + self._rng.below(min(largest, self.link.piece_bytes_max))
