"""One client's connection: bytes in, requests started in order, answers out in order.

HOT PATH: `buffer_updated` runs once per read, `_start` and `_send` once per request.

Theory of operation. Requests are started strictly in the order in which they came; a request that
cannot be answered at once leaves a `_Reply` in the queue and later ones may start, but no answer
passes an older one (T8). Reading stops, and with it everything that a client can make us keep,
while
- 64 answers are outstanding (S10),
- the client does not take its answers (the transport's buffer is over its high-water mark),
- a request that talks to the coordination store is under way,
- the client is throttled, or
- the memory pool is empty (S2).
All refusals of bytes end in `_violation`: one log line, counted, the connection closed (S1, T7).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any, cast, final

from tidemill.core.broker_config import Endpoint
from tidemill.core.deferred import Deferred
from tidemill.core.errors import InvariantViolation, KafkaError, ProtocolViolation
from tidemill.core.limits import KIB, MIB, REQUESTS_IN_FLIGHT_MAX
from tidemill.core.logs import shown
from tidemill.core.telemetry import ApiCounters
from tidemill.server.context import RequestContext
from tidemill.server.dispatch import BoundHandler
from tidemill.server.handlers.api_versions import unsupported_version_answer
from tidemill.server.listener_state import ListenerState
from tidemill.server.receive_buffer import LENGTH_BYTES, ReceiveBuffer
from tidemill.wire.headers import UnsupportedVersion, parse_request_header
from tidemill.wire.message import Message
from tidemill.wire.primitives import Buffer

__all__ = ["Connection"]

log = logging.getLogger(__name__)

ANONYMOUS = "User:ANONYMOUS"
WRITE_HIGH_WATER_BYTES = 4 * MIB
WRITE_LOW_WATER_BYTES = 512 * KIB
JOIN_BYTES_MAX = 16 * KIB
"""Below this, joining an answer's chunks is cheaper than handing several to the transport."""


@final
class _Reply:
    """The place of one answer in the queue, until it can leave."""

    __slots__ = ("bound", "chunks", "correlation_id", "counters", "started_at", "version")

    def __init__(self, bound: BoundHandler, version: int, correlation_id: int) -> None:
        self.bound = bound
        self.version = version
        self.correlation_id = correlation_id
        self.chunks: list[Buffer] | None = None
        self.counters: ApiCounters
        self.started_at = 0.0


@final
class Connection(asyncio.BufferedProtocol):
    """See the module's head. The listener's state is shared by all its connections."""

    __slots__ = (
        "_busy",
        "_muted",
        "_outgoing",
        "_part_since",
        "_peer_address",
        "_reading",
        "_receive",
        "_replies",
        "_state",
        "_transport",
        "_working",
        "_write_paused_since",
        "last_active",
    )

    def __init__(self, state: ListenerState) -> None:
        self._state = state
        self._transport: asyncio.Transport | None = None
        self._receive = ReceiveBuffer(
            state.scratch, state.request_memory, state.services.config.socket_request_max_bytes
        )
        self._replies: deque[_Reply] = deque()
        self._outgoing: list[Buffer] = []
        """Answers that leave at the end of this turn."""
        self._peer_address = ""
        self._busy = False
        """A request that must end before the next may start is under way."""
        self._working = False
        """Guards against re-entry: an answer that leaves may make room for more requests."""
        self._reading = True
        self._muted = False
        self._write_paused_since = 0.0
        self._part_since = 0.0
        self.last_active = state.services.clock.monotonic()

    # --- who it is -------------------------------------------------------------------------------

    @property
    def principal(self) -> str:
        return ANONYMOUS

    @property
    def listener(self) -> str:
        return self._state.name

    @property
    def client_address(self) -> str:
        return self._peer_address

    @property
    def server_endpoint(self) -> Endpoint:
        assert self._transport is not None
        host, port = self._transport.get_extra_info("sockname")[:2]
        return Endpoint(host, port)

    # --- the transport's calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer_address = str(peer[0]) if peer else "unknown"
        if not self._state.admit(self, self._peer_address):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES, low=WRITE_LOW_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.forget(self, self._peer_address)
        self._transport = None
        self._receive.release()
        self._replies.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.space()

    def buffer_updated(self, nbytes: int) -> None:
        state = self._state
        state.services.telemetry.bytes_in += nbytes
        self.last_active = state.services.clock.monotonic()
        self._work(self._receive.received(nbytes))

    def pause_writing(self) -> None:
        self._write_paused_since = self._state.services.clock.monotonic()

    def resume_writing(self) -> None:
        self._write_paused_since = 0.0
        self._resume()

    # --- requests --------------------------------------------------------------------------------

    def _may_start(self) -> bool:
        return not (
            self._busy
            or self._write_paused_since
            or self._muted
            or len(self._replies) >= REQUESTS_IN_FLIGHT_MAX
        )

    def _work(self, data: memoryview) -> None:
        """Start every whole request in `data` that may start now, keep the rest."""
        self._working = True
        receive = self._receive
        position = 0
        try:
            while self._may_start():
                end = receive.next_request_end(data, position)
                if not end:
                    break
                self._start(data[position + LENGTH_BYTES : end])
                if self._transport is None:
                    return
                position = end
            receive.keep(data[position:])
        except ProtocolViolation as violation:
            self._violation(violation)
            return
        finally:
            self._working = False
            self._flush()
        self._part_since = self.last_active if receive.has_part else 0.0
        self._update_reading()

    def _resume(self) -> None:
        """Something that held requests back is over."""
        if self._working or self._transport is None:
            return
        if self._receive.has_part:
            self._work(self._receive.received(0))
        else:
            self._update_reading()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None:
            return
        wanted = self._may_start() and not self._receive.starved
        if wanted and not self._reading:
            self._reading = True
            transport.resume_reading()
        elif not wanted and self._reading:
            self._reading = False
            transport.pause_reading()
        if self._receive.starved:
            self._state.request_memory.wait(self._memory_came_back)

    def _memory_came_back(self) -> None:
        if self._transport is not None and self._receive.starved:
            self._receive.try_grow()
            self._update_reading()

    def _start(self, frame: memoryview) -> None:
        """Run one request's first stage and place its answer."""
        services = self._state.services
        try:
            header = parse_request_header(frame)
            bound = self._state.dispatcher.find(header)
        except UnsupportedVersion as unsupported:
            self._unsupported(unsupported)
            return
        reply = _Reply(bound, header.api_version, header.correlation_id)
        reply.started_at = services.clock.monotonic()
        reply.counters = services.telemetry.api(header.api_key)
        context = RequestContext(services, self, header.api_version, header.client_id or "")
        try:
            answer = bound.start(context, frame, header.body_offset)
        except ProtocolViolation:
            raise
        except InvariantViolation as broken:
            self._state.failed("request", broken)
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: our bug costs one connection
            self._bug(error)
            return
        if answer is None:
            reply.counters.requests += 1
        elif isinstance(answer, Message):
            self._answer_now(reply, answer, context)
        else:
            self._replies.append(reply)
            if isinstance(answer, Deferred):
                answer.then(lambda response: self._answered(reply, response, context))
            else:
                self._busy = True
                self._state.supervisor.spawn("request", self._await(reply, answer, context))

    async def _await(
        self, reply: _Reply, work: Coroutine[Any, Any, Message], context: RequestContext
    ) -> None:
        try:
            response = await work
        except KafkaError as error:
            log.warning("a handler let a refusal escape: %s", shown(error))
            self.close()
            return
        except (InvariantViolation, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: our bug costs one connection
            self._bug(error)
            return
        self._busy = False
        self._answered(reply, response, context)
        self._resume()

    # --- answers ---------------------------------------------------------------------------------

    def _answer_now(self, reply: _Reply, response: Message, context: RequestContext) -> None:
        self._encode(reply, response, context)
        if self._replies:
            self._replies.append(reply)
        else:
            self._send(reply)

    def _answered(self, reply: _Reply, response: Message | None, context: RequestContext) -> None:
        """A deferred answer has come; None stands for "no answer, close" (acks=0 that failed)."""
        if self._transport is None:
            return
        if response is None:
            self.close()
            return
        self._encode(reply, response, context)
        replies = self._replies
        while replies and replies[0].chunks is not None:
            self._send(replies.popleft())
        self._resume()

    def _encode(self, reply: _Reply, response: Message, context: RequestContext) -> None:
        reply.chunks = reply.bound.encode(response, reply.version, reply.correlation_id)
        if context.throttle_ms:
            self._mute(context.throttle_ms)

    def _send(self, reply: _Reply) -> None:
        """Answers of one turn leave together: a pipelining client costs one system call."""
        assert reply.chunks is not None
        counters = reply.counters
        counters.requests += 1
        counters.latency.observe(self._state.services.clock.monotonic() - reply.started_at)
        self._outgoing += reply.chunks
        if not self._working:
            self._flush()

    def _flush(self) -> None:
        chunks, transport = self._outgoing, self._transport
        if not chunks or transport is None:
            return
        self._outgoing = []
        size = sum(map(len, chunks))
        self._state.services.telemetry.bytes_out += size
        if len(chunks) == 1:
            transport.write(chunks[0])
        elif size <= JOIN_BYTES_MAX:
            transport.write(b"".join(chunks))
        else:
            transport.writelines(chunks)

    def _unsupported(self, unsupported: UnsupportedVersion) -> None:
        """ApiVersions gets a version-0 answer that names its range (T2), all else is closed (T7)."""
        answer = unsupported_version_answer(unsupported)
        if answer is None or self._replies:
            raise unsupported
        self._outgoing.append(answer)

    # --- waiting and ending ----------------------------------------------------------------------

    def _mute(self, throttle_ms: int) -> None:
        """Read nothing more for a while (T11)."""
        self._muted = True
        self._state.services.timers.add_after(throttle_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        self._muted = False
        self._resume()

    def overdue(self, now: float) -> str:
        """Why this connection must go, or nothing: the listener asks every few seconds (S9)."""
        limits = self._state.deadlines
        if self._part_since and self._reading and now - self._part_since > limits.frame_s:
            return "a request took too long to arrive"
        if self._write_paused_since and now - self._write_paused_since > limits.write_stall_s:
            return "the client does not read its answers"
        if not self._replies and now - self.last_active > limits.idle_s:
            return "idle"
        return ""

    @property
    def idle(self) -> bool:
        """Whether nothing is owed to this client."""
        return not self._replies and not self._receive.has_part

    def abort(self, reason: str) -> None:
        """Close now, dropping what was not sent."""
        self._state.note_closed(self._peer_address, reason)
        if self._transport is not None:
            self._transport.abort()

    def _violation(self, violation: ProtocolViolation) -> None:
        self._state.services.telemetry.connections_closed_by_fault += 1
        self._state.note_closed(self._peer_address, str(violation))
        self.close()

    def _bug(self, error: Exception) -> None:
        self._state.services.telemetry.unhandled_errors += 1
        log.error("a request failed, its connection is closed", exc_info=error)
        self.close()

    def close(self) -> None:
        """Close after what was already answered; nothing more is read or started."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        self._receive.release()
