"""One client's connection: bytes in, requests started in order, answers out in order.

HOT PATH: `buffer_updated` runs once per read, `_start` once per request.

Theory of operation. Requests are started strictly in the order in which they came; a request that
cannot be answered at once leaves its `Reply` in the queue of answers, and later ones may start.
Requests are not started, and nothing is read, while
- 64 answers, or 8 MiB of answers that wait for older ones, are outstanding (S10), or
- a bit of `_holds` says so.
Reading alone also stops while the memory pool is empty (S2). So whatever a client can make us keep
is bounded by what one read brings, and answers that wait are accounted for in a pool (S40).

All refusals of bytes end in `_violation`: one log line, counted, the connection closed (S1, T7).
Closing waits for the client to take its answers, as long as a client may take for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast, final

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import ErrorCode, InvariantViolation, ProtocolViolation
from tidemill.core.limits import KIB, WRITE_PROGRESS_BYTES_MIN
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import Timer
from tidemill.server.connection.admission import ListenerState
from tidemill.server.connection.answer_queue import JOIN_BYTES_MAX, AnswerQueue, Reply
from tidemill.server.connection.receive_buffer import LENGTH_BYTES, ReceiveBuffer
from tidemill.server.handlers.cluster.api_versions import unsupported_version_answer
from tidemill.server.limits.quotas import THROTTLE_MS_MAX
from tidemill.server.request.context import AnyContext, RequestContext
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.headers import UnsupportedVersion, parse_request_header
from tidemill.wire.message import Message

__all__ = ["Connection"]

ANONYMOUS = "User:ANONYMOUS"
NOWHERE = Endpoint("", 0)
WRITE_HIGH_WATER_BYTES = JOIN_BYTES_MAX
"""What the kernel did not take of the answers before the client counts as not reading. Its own
buffer holds megabytes, so this costs a reading client nothing; and below it nothing is accounted.
"""
WRITE_LOW_WATER_BYTES = WRITE_HIGH_WATER_BYTES // 4
SHORT_REQUEST_BYTES = 4 * KIB
"""A longer one names many things or brings many records: it may take milliseconds. libuv reads up
to 32 times in one turn while there is something, so that one busy producer could take 100 of them.
"""


# Why no request may start now: bits of `_holds`.
BUSY = 1
"""A request in several steps is under way; the next one starts when it has ended."""
WRITING = 2
"""The client does not take its answers."""
MUTED = 4
"""The client is throttled (T11)."""
TURN = 8
"""Others want a turn of the loop first."""
ENDING = 16
"""The broker stops."""
CLOSED = 32
"""It is over; the transport may still have something to send."""


@final
class Connection(asyncio.BufferedProtocol):
    """See the module's head. The listener's state is shared by all its connections."""

    __slots__ = (
        "_answers",
        "_closing_since",
        "_holds",
        "_is_costly",
        "_mute_timer",
        "_muted_until",
        "_part_since",
        "_peer_address",
        "_reading",
        "_receive",
        "_state",
        "_transport",
        "_unsent_mark",
        "_write_paused_since",
        "last_active",
    )

    def __init__(self, state: ListenerState) -> None:
        self._state = state
        self._transport: asyncio.Transport | None = None
        self._receive = ReceiveBuffer(
            state.scratch, state.request_memory, state.services.config.socket_request_max_bytes
        )
        self._answers = AnswerQueue(state.services)
        self._peer_address = ""
        self._holds = 0
        self._is_costly = False
        """What it asked for last took more than a slice: its next request waits for a turn."""
        self._reading = True
        self._mute_timer: Timer | None = None
        self._muted_until = 0.0
        self._write_paused_since = 0.0
        """Since when the client has not taken as much as a client should."""
        self._unsent_mark = 0
        """How much was unsent then."""
        self._part_since = 0.0
        """Since when the request that is arriving may have arrived."""
        self._closing_since = 0.0
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
        if self._transport is None:
            return NOWHERE  # lost meanwhile: nobody will read the answer
        host, port = self._transport.get_extra_info("sockname")[:2]
        return Endpoint(host, port)

    # --- the transport's calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer_address = str(peer[0]) if peer else "unknown"
        if not self._state.admit(self, self._peer_address):
            self._holds |= CLOSED
            transport.abort()
            return
        self._answers.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES, low=WRITE_LOW_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.forget(self, self._peer_address)
        self._let_go()
        self._answers.lost()
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.space()

    def buffer_updated(self, nbytes: int) -> None:
        state = self._state
        state.services.telemetry.bytes_in += nbytes
        self.last_active = now = state.services.clock.monotonic()
        self._work(self._receive.received(nbytes), now)

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._holds |= WRITING
        self._answers.kernel_is_full = True
        self._write_paused_since = self._state.services.clock.monotonic()
        self._unsent_mark = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self._holds &= ~WRITING
        self._write_paused_since = 0.0
        self._answers.kernel_is_full = False
        self._answers.give_unsent()
        self._resume()

    # --- requests --------------------------------------------------------------------------------

    def _may_start(self) -> bool:
        return not self._holds and self._answers.has_room()

    def _work(self, data: memoryview, now: float) -> None:
        """Start every whole request in `data` that may start now, keep the rest."""
        answers = self._answers
        answers.gathering = True
        receive = self._receive
        turns = self._state.turns
        position = 0
        try:
            while self._may_start():
                end = receive.next_request_end(data, position)
                if not end:
                    break
                is_long = end - position > SHORT_REQUEST_BYTES
                asks = position or is_long or self._is_costly
                if asks and turns.is_over(for_long=is_long):
                    self._holds |= TURN
                    turns.wait(self)
                    break
                self._start(data[position + LENGTH_BYTES : end])
                position = end
            if self._holds & CLOSED:
                return
            receive.keep(data[position:])
        except ProtocolViolation as violation:
            self._violation(violation)
            return
        finally:
            answers.gathering = False
            answers.flush()
        if position:
            self._is_costly = turns.is_long(now)
        if not receive.has_part:
            self._part_since = 0.0
        elif position or not self._part_since:
            self._part_since = self.last_active
        self._update_reading()

    def take_turn(self) -> None:
        self._holds &= ~TURN
        self._resume()

    def _resume(self) -> None:
        """Something that held requests back is over.

        Not within `_work`: an answer that leaves there may make room for more requests.
        """
        if self._answers.gathering or self._reading or self._holds & CLOSED:
            return
        if self._receive.has_part:
            self._work(self._receive.received(0), self._state.services.clock.monotonic())
        else:
            self._update_reading()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self._holds & CLOSED:
            return
        wanted = self._may_start() and not self._receive.starved
        if wanted and not self._reading:
            self._reading = True
            if self._part_since:  # what we kept it waiting for is not the client's fault
                self._part_since = self._state.services.clock.monotonic()
            transport.resume_reading()
        elif not wanted and self._reading:
            self._reading = False
            transport.pause_reading()
        if self._receive.starved:
            self._state.request_memory.wait(self._memory_came_back)

    def _memory_came_back(self) -> None:
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
        reply = Reply(
            bound,
            header.api_version,
            header.correlation_id,
            services.telemetry.api(header.api_key),
            services.clock.monotonic(),
        )
        context = RequestContext(services, self, header.api_version, header.client_id or "")
        try:
            answer = bound.start(context, frame, header.body_offset)
            if isinstance(answer, Message):
                self._encode(reply, answer, context)
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
            self._answers.place(reply)
        else:
            self._answers.reserve(reply)
            if isinstance(answer, Deferred):
                reply.deferred = answer
                answer.then(lambda response: self._answered(reply, response, context))
            else:
                self._holds |= BUSY
                self._state.supervisor.spawn("request", self._await(reply, answer, context))

    def _unsupported(self, unsupported: UnsupportedVersion) -> None:
        """ApiVersions gets a version-0 answer that names its range (T2), others are closed (T7)."""
        answer = unsupported_version_answer(unsupported)
        if answer is None:
            raise unsupported
        services = self._state.services
        services.telemetry.count_error(ErrorCode.UNSUPPORTED_VERSION)
        reply = Reply(
            self._state.dispatcher.bound(ApiKey.API_VERSIONS),
            0,
            unsupported.correlation_id,
            services.telemetry.api(ApiKey.API_VERSIONS),
            services.clock.monotonic(),
        )
        reply.chunks = [answer]
        self._answers.place(reply)

    async def _await(
        self, reply: Reply, work: Coroutine[Any, Any, Message], context: AnyContext
    ) -> None:
        """A request in several steps: a few at a time, and while there is room for the answer."""
        try:
            async with self._state.slow_requests:
                await self._state.wait_response_room()
                if self._holds & CLOSED:
                    return
                response = await work
        except (InvariantViolation, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: our bug costs one connection
            self._bug(error)
            return
        finally:
            work.close()
        self._holds &= ~BUSY
        self._answered(reply, response, context)

    # --- answers ---------------------------------------------------------------------------------

    def _answered(self, reply: Reply, response: Message | None, context: AnyContext) -> None:
        """A deferred answer has come; None stands for "no answer, close" (acks=0 that failed)."""
        if self._holds & CLOSED:
            return
        if response is None:
            self.close()
            return
        try:
            self._encode(reply, response, context)
        except Exception as error:  # noqa: BLE001 - whoever resolved the answer is not to blame
            self._bug(error)
            return
        self._answers.answered(reply)
        self._resume()

    def _encode(self, reply: Reply, response: Message, context: AnyContext) -> None:
        reply.chunks = reply.bound.encode(response, reply.version, reply.correlation_id)
        if context.throttle_ms:
            self._mute(context.throttle_ms)

    # --- waiting ---------------------------------------------------------------------------------

    def _mute(self, throttle_ms: int) -> None:
        """Read nothing more for a while (T11)."""
        services = self._state.services
        delay_s = min(throttle_ms, THROTTLE_MS_MAX) / 1000
        until = services.clock.monotonic() + delay_s
        if until <= self._muted_until:
            return
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self._holds |= MUTED
        self._muted_until = until
        self._mute_timer = services.timers.add_after(delay_s, self._unmute)

    def _unmute(self) -> None:
        self._mute_timer = None
        self._holds &= ~MUTED
        self._resume()

    def check_deadlines(self, now: float) -> None:
        """Drop a client that overstayed (S9); the listener calls it every few seconds."""
        limits = self._state.deadlines
        if self._closing_since:
            if now - self._closing_since > self._state.write_stall_s:
                self.abort()
        elif self._write_paused_since:
            if self._is_stalled(now):
                self._fault("the client does not read its answers")
                self.abort()
        elif self._part_since and (self._reading or self._receive.starved):
            if now - self._part_since > limits.frame_s:
                self._fault("a request took too long to arrive")
                self.abort()
        elif not self._answers and now - self.last_active > limits.idle_s:
            self.close()

    def _is_stalled(self, now: float) -> bool:
        """Whether the client has taken hardly anything for too long; slow is not stalled."""
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size()
        if unsent + WRITE_PROGRESS_BYTES_MIN <= self._unsent_mark:
            self._write_paused_since = now
            self._unsent_mark = unsent
        elif unsent > self._unsent_mark:
            self._unsent_mark = unsent
        return now - self._write_paused_since > self._state.write_stall_s

    # --- ending ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """The broker stops: nothing more is started, what was started is answered."""
        self._holds |= ENDING
        self._update_reading()

    @property
    def is_drained(self) -> bool:
        """Whether nothing is owed to this client."""
        transport = self._transport
        return not self._answers and (transport is None or not transport.get_write_buffer_size())

    @property
    def unread_s(self) -> float:
        """For how long the client has not taken its answers."""
        since = self._write_paused_since
        return self._state.services.clock.monotonic() - since if since else 0.0

    def _fault(self, reason: str) -> None:
        self._state.services.telemetry.connections_closed_by_fault += 1
        self._state.note_closed(self._peer_address, reason)

    def _violation(self, violation: ProtocolViolation) -> None:
        self._fault(str(violation))
        self.close()

    def _bug(self, error: Exception) -> None:
        self._state.note_bug(self._peer_address, error)
        self.close()

    def close(self) -> None:
        """Close after what was already answered; nothing more is read or started."""
        if self._holds & CLOSED or self._transport is None:
            return
        self._answers.flush()
        self._closing_since = self._state.services.clock.monotonic()
        self._let_go()
        self._transport.close()

    def abort(self) -> None:
        """Close now, dropping what was not sent."""
        self._let_go()
        self._answers.give_unsent()
        if self._transport is not None:
            self._transport.abort()

    def _let_go(self) -> None:
        """Of everything but what the transport still has to send."""
        self._holds |= CLOSED
        self._answers.let_go()
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._state.request_memory.forget(self._memory_came_back)
        self._receive.release()
