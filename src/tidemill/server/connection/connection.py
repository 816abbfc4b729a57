"""One client's connection: bytes in, requests started in order, answers out in order.

HOT PATH: `buffer_updated` runs once per read, `_start` once per request.

Theory of operation. Requests start strictly in the order in which they arrive. A request that
cannot be answered at once leaves its `AnswerSlot` in the queue of answers, and later ones may
start. The connection starts no request and reads nothing while
- 64 answers, or 8 MiB of answers that wait for older ones, are outstanding (S10), or
- a bit of `_holds` is set.
Reading alone also stops while the memory pool is empty (S2). So the bytes kept for a client are
bounded by what one read brings, and answers that wait are accounted for in a pool (S40).

Every protocol violation ends in `_close_for_violation`: one log line, counted, the connection
closed (S1, T7). Closing waits for the client to read its answers, up to the write stall deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, cast, final

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import ErrorCode, InvariantViolation, ProtocolViolation
from tidemill.core.limits import KIB
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import Timer
from tidemill.server.connection.answer_queue import JOIN_BYTES_MAX, AnswerQueue, AnswerSlot
from tidemill.server.connection.last_commits import last_commits
from tidemill.server.connection.listener_resources import ListenerResources
from tidemill.server.connection.read_stall import ReadStall
from tidemill.server.connection.receive_buffer import LENGTH_BYTES, ReceiveBuffer
from tidemill.server.connection.sliced_request import SlicedRequest
from tidemill.server.connection.slow_request import SlowRequest
from tidemill.server.handlers.cluster.api_versions import try_unsupported_version_answer
from tidemill.server.limits.quotas import THROTTLE_MS_MAX
from tidemill.server.request.context import AnyContext, RequestContext
from tidemill.server.request.handler import Unfinished
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.headers import UnsupportedVersion, parse_request_header
from tidemill.wire.message import Message

__all__ = ["Connection"]

ANONYMOUS: Final = "User:ANONYMOUS"
NOWHERE: Final = Endpoint("", 0)
WRITE_HIGH_WATER_BYTES: Final = JOIN_BYTES_MAX
"""Unsent bytes beyond which the client counts as not reading. The kernel's own buffer holds
megabytes, so this costs a reading client nothing. Below it nothing is accounted for.
"""
WRITE_LOW_WATER_BYTES: Final = WRITE_HIGH_WATER_BYTES // 4
SHORT_REQUEST_BYTES: Final = 4 * KIB
"""A longer request names many things or brings many records and may take milliseconds. libuv reads
a busy socket up to 32 times in one turn, so one busy producer could take 100 ms.
"""

# Why no request may start now: bits of `_holds`.
BUSY: Final = 1
"""A request in several steps or slices is running; the next one starts when it has ended."""
UNREAD: Final = 2
"""The client does not read its answers."""
MUTED: Final = 4
"""The client is throttled (T11)."""
QUEUED: Final = 8
"""The slice of the loop is used up; the connection waits for the next one."""
ENDING: Final = 16
"""The broker stops."""
CLOSED: Final = 32
"""Nothing more starts; the transport may still have bytes to send."""


@final
class Connection(asyncio.BufferedProtocol):
    """One client, from accept to close; the broker's end of the transport."""

    __slots__ = (
        "_answers",
        "_closing_since",
        "_holds",
        "_is_costly",
        "_mute_timer",
        "_muted_until",
        "_part_since",
        "_read_stall",
        "_reading",
        "_receive",
        "_resources",
        "_transport",
        "client_address",
        "is_librdkafka",
        "last_active",
        "principal",
    )

    def __init__(self, resources: ListenerResources) -> None:
        self._resources = resources
        self._transport: asyncio.Transport | None = None
        self._receive = ReceiveBuffer(
            resources.scratch,
            resources.request_memory,
            resources.services.config.static.socket_request_max_bytes,
        )
        self._answers = AnswerQueue(resources.services)
        self.client_address = ""
        self._holds = 0
        self._is_costly = False
        """The last read took more than a slice: the next request waits for one."""
        self._reading = True
        self._mute_timer: Timer | None = None
        self._muted_until = 0.0
        self._read_stall = ReadStall()
        self._part_since = 0.0
        """Since when we have been reading the request that is arriving; 0 if there is none."""
        self._closing_since = 0.0
        self.principal = ANONYMOUS
        self.is_librdkafka = False
        self.last_active = resources.services.clock.monotonic()

    # --- the peer of a request context -----------------------------------------------------------

    @property
    def is_passed_on(self) -> bool:
        return False

    @property
    def server_endpoint(self) -> Endpoint:
        if self._transport is None:
            return NOWHERE  # the connection is lost: the answer is never sent
        host, port = self._transport.get_extra_info("sockname")[:2]
        return Endpoint(host, port)

    @property
    def is_internal(self) -> bool:
        """Whether it came by the INTERNAL listener, which is for brokers (S31)."""
        return self._resources.is_internal

    # --- the transport's calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit it
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.client_address = str(peer[0]) if peer else "unknown"
        if not self._resources.admission.admit(self, self.client_address):
            self._holds |= CLOSED
            transport.abort()
            return
        self._answers.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES, low=WRITE_LOW_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._resources.admission.forget(self, self.client_address)
        self._answers.transport_lost()
        self._transport = None
        self._start_last_commits()
        self._release()
        self._answers.transport_lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.space()

    def buffer_updated(self, nbytes: int) -> None:
        resources = self._resources
        resources.services.telemetry.bytes_in += nbytes
        self.last_active = now = resources.services.clock.monotonic()
        self._start_requests(self._receive.received(nbytes), now)

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._holds |= UNREAD
        self._answers.kernel_is_full = True
        unsent_bytes = self._transport.get_write_buffer_size()
        self._read_stall.begin(unsent_bytes, self._resources.services.clock.monotonic())

    def resume_writing(self) -> None:
        self._holds &= ~UNREAD
        self._read_stall.end()
        self._answers.kernel_is_full = False
        self._answers.give_unsent()
        self._resume()

    # --- requests --------------------------------------------------------------------------------

    def _may_start(self) -> bool:
        return not self._holds and self._answers.has_room()

    def _start_requests(self, data: memoryview, now: float) -> None:
        """Start every whole request in `data` that may start now, and keep the rest."""
        answers = self._answers
        answers.gathering = True
        receive = self._receive
        slices = self._resources.loop_slices
        position = 0
        try:
            while self._may_start():
                end = receive.next_request_end(data, position)
                if not end:
                    break
                is_long = end - position > SHORT_REQUEST_BYTES
                needs_slice = position or is_long or self._is_costly
                if needs_slice and slices.is_used_up(for_long=is_long):
                    self._holds |= QUEUED
                    slices.enqueue(self)
                    break
                self._start(data[position + LENGTH_BYTES : end])
                position = end
            if self._holds & CLOSED:
                return
            receive.keep(data[position:])
        except ProtocolViolation as violation:
            self._close_for_violation(violation)
            return
        finally:
            answers.gathering = False
            answers.flush()
        if position:
            self._is_costly = slices.is_exceeded(now)
        if not receive.has_part:
            self._part_since = 0.0
        elif position or not self._part_since:
            self._part_since = self.last_active
        self._update_reading()

    def _start_last_commits(self) -> None:
        if self._holds & CLOSED:
            return
        try:
            for frame in last_commits(self._receive):
                self._start(frame)
                if self._holds & CLOSED:
                    return
        except ProtocolViolation as violation:
            self._note_fault(str(violation))

    def take_slice(self) -> None:
        self._holds &= ~QUEUED
        self._resume()

    def _resume(self) -> None:
        """Start requests again after a hold has ended.

        Does nothing within `_start_requests`, where an answer that leaves may make room for more.
        """
        if self._answers.gathering or self._reading or self._holds & CLOSED:
            return
        if self._receive.has_part:
            self._start_requests(
                self._receive.received(0), self._resources.services.clock.monotonic()
            )
        else:
            self._update_reading()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self._holds & CLOSED:
            return
        wanted = self._may_start() and not self._receive.starved
        if wanted and not self._reading:
            self._reading = True
            if self._part_since:  # the client could not send while we did not read
                self._part_since = self._resources.services.clock.monotonic()
            transport.resume_reading()
        elif not wanted and self._reading:
            self._reading = False
            transport.pause_reading()
        if self._receive.starved:
            self._resources.request_memory.wait(self._continue_reading)

    def _continue_reading(self) -> None:
        self._receive.try_grow()
        self._update_reading()

    def _start(self, frame: memoryview) -> None:
        """Run the first stage of a request and place its answer."""
        services = self._resources.services
        try:
            header = parse_request_header(frame)
            bound = self._resources.dispatcher.find(header)
        except UnsupportedVersion as unsupported:
            self._answer_unsupported(unsupported)
            return
        slot = AnswerSlot(
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
                self._encode(slot, answer, context)
        except ProtocolViolation:
            raise
        except InvariantViolation as broken:
            self._resources.failed("request", broken)
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: our bug costs one connection
            self._close_for_bug(error)
            return
        if answer is None:
            slot.counters.requests += 1
        elif isinstance(answer, Message):
            self._answers.place(slot)
        else:
            self._answers.reserve(slot)
            self._await(slot, answer, context, len(frame))

    def _await(
        self,
        slot: AnswerSlot,
        answer: Deferred[Any] | Unfinished | Coroutine[Any, Any, Message],
        context: AnyContext,
        frame_bytes: int,
    ) -> None:
        """The answer comes later: by itself, or when the rest of the request has run."""
        if isinstance(answer, Deferred):
            slot.deferred = answer
            answer.then(lambda response: self._answered(slot, response, context))
            return
        self._holds |= BUSY
        if isinstance(answer, Unfinished):
            SlicedRequest(
                self._resources,
                answer.work,
                self._receive.hold_frame(),
                ended=lambda response: self._busy_ended(slot, response, context),
                failed=self._close_for_bug,
            )
        else:
            SlowRequest(
                self._resources,
                answer,
                frame_bytes=frame_bytes,
                is_metadata=slot.bound.handler.api_key is ApiKey.METADATA,
                is_wanted=lambda: not self._holds & CLOSED,
                ended=lambda response: self._busy_ended(slot, response, context),
                failed=self._close_for_bug,
            )

    def _answer_unsupported(self, unsupported: UnsupportedVersion) -> None:
        """Answer ApiVersions in version 0 with its range (T2); close for any other API (T7)."""
        answer = try_unsupported_version_answer(unsupported)
        if answer is None:
            raise unsupported
        services = self._resources.services
        services.telemetry.count_error(ErrorCode.UNSUPPORTED_VERSION)
        slot = AnswerSlot(
            self._resources.dispatcher.bound(ApiKey.API_VERSIONS),
            0,
            unsupported.correlation_id,
            services.telemetry.api(ApiKey.API_VERSIONS),
            services.clock.monotonic(),
        )
        slot.chunks = [answer]
        self._answers.place(slot)

    def _busy_ended(
        self, slot: AnswerSlot, response: Message | Deferred[Any] | None, context: AnyContext
    ) -> None:
        """A request in steps or slices is done; its answer is here or comes later, or is none."""
        self._holds &= ~BUSY
        if self._holds & CLOSED:
            return
        if isinstance(response, Message):
            self._answered(slot, response, context)
            return
        if response is None:
            self._answers.withdraw(slot)
        else:
            slot.deferred = response
            response.then(lambda late: self._answered(slot, late, context))
        self._resume()

    # --- answers ---------------------------------------------------------------------------------

    def _answered(self, slot: AnswerSlot, response: Message | None, context: AnyContext) -> None:
        """A later answer is here; None means: send no answer and close (acks=0 that failed)."""
        if self._holds & CLOSED:
            return
        if response is None:
            self.close()
            return
        try:
            self._encode(slot, response, context)
        except Exception as error:  # noqa: BLE001 - not the fault of the code that resolved it
            self._close_for_bug(error)
            return
        self._answers.complete(slot)
        self._resume()

    def _encode(self, slot: AnswerSlot, response: Message, context: AnyContext) -> None:
        slot.chunks = slot.bound.encode(response, slot.version, slot.correlation_id)
        if context.throttle_ms:
            self._mute(context.throttle_ms)

    # --- waiting ---------------------------------------------------------------------------------

    def _mute(self, throttle_ms: int) -> None:
        """Read nothing for the throttle time (T11)."""
        services = self._resources.services
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
        """Drop a client that exceeds a deadline (S9); the listener calls this every few seconds."""
        limits = self._resources.deadlines
        if self._closing_since:
            if now - self._closing_since > self._resources.write_stall_s:
                self.abort()
        elif self._read_stall.is_begun:
            assert self._transport is not None
            unsent_bytes = self._transport.get_write_buffer_size()
            if self._read_stall.exceeds(self._resources.write_stall_s, unsent_bytes, now):
                self._note_fault("the client does not read its answers")
                self.abort()
        elif self._part_since and (self._reading or self._receive.starved):
            if now - self._part_since > limits.frame_s:
                self._note_fault("a request took too long to arrive")
                self.abort()
        elif not self._answers and now - self.last_active > limits.idle_s:
            self.close()

    # --- ending ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """The broker stops: start nothing more, answer what was started."""
        self._holds |= ENDING
        self._update_reading()

    @property
    def is_drained(self) -> bool:
        """Whether nothing is owed to this client."""
        transport = self._transport
        return not self._answers and (transport is None or not transport.get_write_buffer_size())

    @property
    def unread_s(self) -> float:
        """For how long the client has not read its answers."""
        return self._read_stall.duration_s(self._resources.services.clock.monotonic())

    def _note_fault(self, reason: str) -> None:
        self._resources.services.telemetry.connections_closed_by_fault += 1
        self._resources.connection_log.note_closed(self.client_address, reason)

    def _close_for_violation(self, violation: ProtocolViolation) -> None:
        self._note_fault(str(violation))
        self.close()

    def _close_for_bug(self, error: Exception) -> None:
        self._resources.connection_log.note_bug(self.client_address, error)
        self.close()

    def close(self) -> None:
        """Close once the answers so far are sent; read and start nothing more."""
        if self._holds & CLOSED or self._transport is None:
            return
        self._answers.flush()
        self._closing_since = self._resources.services.clock.monotonic()
        self._release()
        self._transport.close()

    def abort(self) -> None:
        """Close now and drop unsent bytes."""
        self._release()
        self._answers.give_unsent()
        if self._transport is not None:
            self._transport.abort()

    def _release(self) -> None:
        """Give up everything except the bytes that the transport still has to send."""
        self._holds |= CLOSED
        self._answers.drop()
        if self._resources.is_internal:
            self._resources.services.replica_sessions.end(self)
        self._resources.ended(self)
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._resources.request_memory.forget(self._continue_reading)
        self._receive.release()
