"""Both ends of a simulated connection, and the two pipes between them.

Theory of operation. A pipe models TCP on a link: bytes keep their order and arrive in pieces of any
size, after a delay that belongs to the pipe. Written bytes pass through three stages:

    backlog (the sender's transport)  ->  wire (in transit)  ->  unread (the receiver's socket)

The wire and `unread` together hold at most a window. A receiver that does not read fills it, then
the sender's backlog grows, and beyond the high-water mark its protocol is told to pause.

The end of a connection travels through the pipe like data: FIN after the last byte, RST instead of
the bytes that were not sent yet.

Protocols are called in the context of their host, so that tasks they start belong to it. Pipes run
on a host of their own: bytes on the wire arrive even if their sender is dead.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, final

from tidemill.core.limits import KIB
from tidemill.core.rng import Rng
from tidemill.testing.sim.loop import CURRENT_HOST, SimHost, SimLoop

__all__ = ["Address", "Damage", "End", "Link", "Medium", "Observer", "connect_ends"]

Address = tuple[str, int]
Observer = Callable[[str, str, bytes], None]
"""Called with what happened, where, and the bytes."""
Bytes = bytes | bytearray | memoryview
Damage = Callable[[bytes], bytes]
"""What was sent, to what arrives: as many bytes."""

RETRANSMIT_S = 0.2
WRITE_HIGH_WATER_BYTES = 64 * KIB
SMALL_PIECE_ONE_IN = 8
SMALL_PIECE_BYTES_MAX = 16
RNG_STEPS = 1_000_000


class _Signal(Enum):
    """Signals that travel through a pipe besides bytes."""

    FIN = "fin"
    RST = "rst"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The properties of the network."""

    delay_s_min: float = 0.0001
    delay_s_max: float = 0.002
    piece_bytes_max: int = 16 * KIB
    window_bytes: int = 64 * KIB


@final
class Medium:
    """What all connections of a network share: its speed, faults, time and randomness."""

    def __init__(self, loop: SimLoop, rng: Rng, link: Link, observe: Observer) -> None:
        self.link = link
        self.observe = observe
        self.cuts: set[tuple[str, str]] = set()
        """Directions in which nothing arrives, by host names."""
        self.down: set[str] = set()
        """Machines without power: they do not even refuse a connection."""
        self.damages: dict[tuple[str, str], Damage] = {}
        """What becomes of bytes on their way, by host names."""
        self.ends: dict[End, None] = {}
        """The ends of all open connections."""
        self._loop = loop
        self._rng = rng
        self.run_on = loop.run_on
        self._context = Context()
        self._context.run(CURRENT_HOST.set, SimHost("the network"))

    def passes(self, source: str, target: str) -> bool:
        """Whether anything sent from one host reaches the other now."""
        return (source, target) not in self.cuts and target not in self.down

    def on_its_way(self, source: str, target: str, data: Bytes) -> Bytes:
        """What the other host will receive of this."""
        damage = self.damages.get((source, target))
        return data if damage is None else damage(bytes(data))

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
        """Mostly large, often enough a few bytes: code must not rely on where pieces are cut."""
        small = self._rng.below(SMALL_PIECE_ONE_IN) == 0
        largest = SMALL_PIECE_BYTES_MAX if small else self.link.piece_bytes_max
        return 1 + self._rng.below(min(largest, self.link.piece_bytes_max))


@final
class Pipe:
    """One direction of a connection."""

    def __init__(self, medium: Medium, source: End, target: End) -> None:
        self.backlog = bytearray()
        self.unread = bytearray()
        self._medium = medium
        self._source = source
        self._target = target
        self._wire: deque[tuple[float, bytes | _Signal]] = deque()
        self._wire_bytes = 0
        self._delay_s = medium.draw_delay_s()
        self._last_arrival = 0.0
        self._arrival_is_set = False
        self._ack_is_set = False
        self._ending = False
        self._last_signal: _Signal | None = None
        self._sender_has_power = True

    def send(self, data: Bytes) -> None:
        source, target = self._source.host.name, self._target.host.name
        self.backlog += self._medium.on_its_way(source, target, data)
        self.pump()

    def pump(self) -> None:
        """Put on the wire what the window allows, and FIN after the last byte."""
        while self.backlog and (room := self._room()) > 0:
            size = min(room, len(self.backlog), self._medium.draw_piece_bytes())
            self._put(bytes(self.backlog[:size]))
            del self.backlog[:size]
        if self._ending and not self.backlog:
            self._end(_Signal.FIN)

    def finish(self) -> None:
        """Nothing more will be sent: FIN follows when the backlog is empty."""
        self._ending = True
        self.pump()

    def reset(self) -> None:
        """Drop the unsent bytes and send RST."""
        self.backlog.clear()
        self._end(_Signal.RST)

    def power_lost(self) -> None:
        """Nobody is left to send again what a cut has stopped."""
        self._sender_has_power = False

    def read_some(self, count: int) -> bytes:
        """The receiver takes bytes; a waiting sender learns that there is room."""
        data = bytes(self.unread[:count])
        del self.unread[:count]
        self._announce_room()
        return data

    def _room(self) -> int:
        return self._medium.link.window_bytes - self._wire_bytes - len(self.unread)

    def _end(self, signal: _Signal) -> None:
        if self._last_signal not in (signal, _Signal.RST):
            self._last_signal = signal
            self._put(signal)

    def _put(self, item: bytes | _Signal) -> None:
        arrival = self._medium.time() + self._delay_s + self._medium.draw_jitter_s()
        self._last_arrival = max(self._last_arrival, arrival)
        self._wire.append((self._last_arrival, item))
        if isinstance(item, bytes):
            self._wire_bytes += len(item)
        self._await_arrival()

    def _await_arrival(self) -> None:
        if self._wire and not self._arrival_is_set:
            self._arrival_is_set = True
            self._medium.call_at(self._wire[0][0], self._arrive)

    def _arrive(self, *, is_repeated: bool = False) -> None:
        if is_repeated and not self._sender_has_power:
            self._wire.clear()
            return
        if not self._medium.passes(self._source.host.name, self._target.host.name):
            repeat = partial(self._arrive, is_repeated=True)
            self._medium.call_at(self._medium.time() + RETRANSMIT_S, repeat)
            return
        self._arrival_is_set = False
        _, item = self._wire.popleft()
        self._await_arrival()
        if isinstance(item, bytes):
            self._wire_bytes -= len(item)
        self._target.arrived(item)

    def _announce_room(self) -> None:
        if (self.backlog or self._ending) and not self._ack_is_set:
            self._ack_is_set = True
            self._medium.call_at(self._medium.time() + self._delay_s, self._acknowledged)

    def _acknowledged(self) -> None:
        self._ack_is_set = False
        self._source.room_available()


@final
class End(asyncio.Transport):
    """One end of a connection: the transport that a protocol gets."""

    def __init__(self, medium: Medium, host: SimHost, sockname: Address, peername: Address) -> None:
        super().__init__({"sockname": sockname, "peername": peername})
        self.host = host
        self.name = f"{sockname[0]}:{sockname[1]}>{peername[0]}:{peername[1]}"
        self._medium = medium
        self._protocol: asyncio.BaseProtocol | None = None
        self._context = Context()
        self._high = WRITE_HIGH_WATER_BYTES
        self._low = WRITE_HIGH_WATER_BYTES // 4
        self._write_paused = False
        self._reading = True
        self._eof_waits = False
        self._closing = False
        self._lost = False
        self._reason: Exception | None = None
        """Why it was lost; None: closed in order, or by this end."""

    def join(self, outgoing: Pipe, incoming: Pipe) -> None:
        self._outgoing = outgoing
        self._incoming = incoming

    def open(self, protocol: asyncio.BaseProtocol, context: Context) -> None:
        """Give the connection to its protocol, which runs in `context` from now on."""
        was_lost = self._lost
        self._protocol = protocol
        self._context = context
        self._call(protocol.connection_made, self)
        self._medium.call_soon(self._report_lost if was_lost else self._deliver)

    # --- asyncio.Transport -----------------------------------------------------------------------

    def write(self, data: Bytes) -> None:
        if self._closing or not data:
            return
        self._outgoing.send(data)
        self._maybe_pause_writing()

    def writelines(self, list_of_data: Iterable[Bytes]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._outgoing.finish()
        self._maybe_end()

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
            self._medium.call_soon(self._deliver)

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

    # --- events from the pipes -------------------------------------------------------------------

    def arrived(self, item: bytes | _Signal) -> None:
        if not self.host.alive or self._lost:
            if item is not _Signal.RST:
                self._outgoing.reset()
        elif item is _Signal.RST:
            self.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        elif item is _Signal.FIN:
            self._eof_waits = True
            self._deliver()
        else:
            assert isinstance(item, bytes)
            self._medium.observe("receive", self.name, item)
            self._incoming.unread += item
            self._deliver()

    def room_available(self) -> None:
        """The peer has read: more of the backlog may be sent."""
        if self._lost or not self.host.alive:
            return
        if self.host.paused_at is not None:
            self.host.on_resume.append(self.room_available)
            return
        self._outgoing.pump()
        if self._write_paused and len(self._outgoing.backlog) <= self._low:
            self._write_paused = False
            self._call(self.get_protocol().resume_writing)
        self._maybe_end()

    def lose(self, reason: Exception | None) -> None:
        """End the connection at once and drop bytes in transit; the peer gets RST."""
        if self._lost:
            return
        self._outgoing.reset()
        self._incoming.unread.clear()
        self._end(reason)

    def die(self, *, silent: bool) -> None:
        """The process is gone: its protocol is not called again; a living kernel sends RST."""
        self._closing = self._lost = True
        self._medium.ends.pop(self, None)
        if silent:
            self._outgoing.power_lost()
        else:
            self._outgoing.reset()

    def _end(self, reason: Exception | None) -> None:
        self._closing = self._lost = True
        self._reason = reason
        self._medium.ends.pop(self, None)
        if self._protocol is not None:
            self._medium.call_soon(self._report_lost)

    def _deliver(self) -> None:
        """Pass on what has arrived, until there is no more or the protocol pauses."""
        incoming = self._incoming
        while incoming.unread and self._may_deliver():
            self._hand_over(incoming)
        if self._eof_waits and not incoming.unread and self._may_deliver():
            self._eof_waits = False
            self._medium.observe("eof", self.name, b"")
            protocol = self.get_protocol()
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not self._call(protocol.eof_received):
                self.close()

    def _may_deliver(self) -> bool:
        open_ = self._protocol is not None and not self._closing
        runs = self.host.alive and self.host.paused_at is None
        return open_ and self._reading and runs

    def _hand_over(self, incoming: Pipe) -> None:
        protocol = self.get_protocol()
        if not isinstance(protocol, asyncio.BufferedProtocol):
            assert isinstance(protocol, asyncio.Protocol)
            self._call(protocol.data_received, incoming.read_some(len(incoming.unread)))
            return
        self._call(self._fill, protocol, incoming)

    def _fill(self, protocol: asyncio.BufferedProtocol, incoming: Pipe) -> None:
        view = memoryview(protocol.get_buffer(-1))
        if self._closing:
            return
        if not len(view):
            raise RuntimeError(f"{protocol!r} has no room, but did not pause")
        data = incoming.read_some(len(view))
        view[: len(data)] = data
        protocol.buffer_updated(len(data))

    def _call(self, method: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 - any method
        """Call the protocol on its host. As in asyncio, a failure ends the connection."""
        try:
            return self._medium.run_on(self.host, self._context, method, *args)
        except Exception as error:  # noqa: BLE001 - the boundary that asyncio has here, too
            self._medium.report_failure(f"{self.name}: {method!r} failed", error)
            self.lose(error)
            return None

    def resumed(self) -> None:
        """The host goes on after a pause: what arrived meanwhile is in its socket."""
        self._medium.call_soon(self._deliver)

    def _report_lost(self) -> None:
        if self.host.alive and self.host.paused_at is not None:
            self.host.on_resume.append(self._report_lost)
            return
        protocol = self.get_protocol()
        if self.host.alive:
            self._medium.observe("lost", self.name, b"")
            self._call(protocol.connection_lost, self._reason)

    def _maybe_end(self) -> None:
        """After `close`: end the connection once everything was sent."""
        if self._closing and not self._lost and not self._outgoing.backlog:
            if self._incoming.unread:  # like a kernel: the peer's bytes were not read
                self._outgoing.reset()
            self._end(None)

    def _maybe_pause_writing(self) -> None:
        if not self._write_paused and len(self._outgoing.backlog) > self._high:
            self._write_paused = True
            self.get_protocol().pause_writing()


def connect_ends(
    medium: Medium, one: tuple[SimHost, Address], other: tuple[SimHost, Address]
) -> tuple[End, End]:
    """Both ends of a new connection."""
    near, far = End(medium, *one, other[1]), End(medium, *other, one[1])
    there, back = Pipe(medium, near, far), Pipe(medium, far, near)
    near.join(there, back)
    far.join(back, there)
    medium.ends.update(dict.fromkeys((near, far)))
    medium.observe("connect", near.name, b"")
    return near, far
