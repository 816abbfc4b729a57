"""One connection to one broker: requests out, answers back, in order.

Theory of operation. A broker answers the requests of a connection in the order of their arrival
(T8), so the connection keeps pending requests in a queue and gives each arriving frame to the
oldest. At most `in_flight_max` are in flight. A request that is not answered in time ends the
connection, because every later answer is stuck behind the missing one. After any fault the
connection stays unusable; its owner decides whether to open a new one.

The first request is ApiVersions: at our newest version, then, if the broker does not know that one,
at the version its error answer names (T2). Every later request uses the highest version that both
sides know, unless the caller asks for another.

There is no task here: the event loop calls `buffer_updated`, callers wait on futures. It runs on
any loop and over any `Net`. Throttling needs no code: a broker that throttles stops reading (T11),
and the bound on requests in flight does the rest.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast, final

from tidemill.client.network.errors import (
    BrokerUnreachable,
    ConnectionClosed,
    ConnectionLost,
    RequestTimedOut,
    WouldBlock,
    check,
)
from tidemill.client.network.response_buffer import ResponseBuffer
from tidemill.core.errors import ErrorCode, KafkaError, ProtocolViolation, TidemillError
from tidemill.core.limits import MIB
from tidemill.core.net import Net
from tidemill.wire.api_keys import API_SPECS, ApiKey, ApiSpec
from tidemill.wire.generated.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from tidemill.wire.headers import encode_request, parse_response_header
from tidemill.wire.message import Message
from tidemill.wire.primitives import Reader

__all__ = ["BrokerConnection"]

R = TypeVar("R", bound=Message)

RESPONSE_BYTES_MAX = 128 * MIB
"""More than any broker's fetch.max.bytes."""
RESPONSE_OBJECTS_MAX = 1_000_000
"""Metadata of a large cluster has more parts than any request may have."""

_SPECS_BY_REQUEST = {f"{spec.name}Request": spec for spec in API_SPECS.values()}
_CORRELATION_ID_MAX = 2**31 - 1
_UNSUPPORTED_VERSION = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


@final
@dataclass(slots=True)
class _Pending:
    """A request without an answer. Its `future` may already be done: cancelled by its owner."""

    spec: ApiSpec
    version: int
    correlation_id: int
    response_type: type[Message]
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle


@final
class BrokerConnection(asyncio.BufferedProtocol):
    """Made by `open`; usable until `close`, a fault, or the end of the peer."""

    def __init__(self, host: str, port: int, client_id: str, in_flight_max: int) -> None:
        self.address = f"{host}:{port}"
        self._client_id = client_id
        self._in_flight_max = in_flight_max
        self._buffer = ResponseBuffer(RESPONSE_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._correlation_id = 0
        self._versions: dict[int, ApiVersion] = {}
        """The broker's versions by API key; empty until ApiVersions is answered."""
        self._fault: TidemillError | None = None
        """Why the connection ended; None while it is usable."""
        self._write_paused = False
        self._room = asyncio.Event()
        self._room.set()

    @classmethod
    async def open(
        cls,
        net: Net,
        host: str,
        port: int,
        *,
        timeout_s: float,
        client_id: str = "tidemill",
        in_flight_max: int = 5,
    ) -> Self:
        """Connect and agree on versions. Raises BrokerUnreachable, or what ApiVersions raised."""
        self = cls(host, port, client_id, in_flight_max)
        try:
            async with asyncio.timeout(timeout_s):
                await net.connect(lambda: self, host, port)
        except (OSError, TimeoutError) as error:
            raise BrokerUnreachable(
                f"cannot connect to {self.address}: {_reason(error)}"
            ) from error
        try:
            await self._negotiate(timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    # --- requests --------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether requests can still be sent."""
        return self._fault is None

    @property
    def in_flight(self) -> int:
        """The number of requests without an answer."""
        return len(self._pending)

    @property
    def has_room(self) -> bool:
        """Whether `request_nowait` would send: not too much is in flight."""
        return len(self._pending) < self._in_flight_max and not self._write_paused

    def version_of(self, key: ApiKey) -> int:
        """The highest version of an API that both sides know."""
        spec = API_SPECS[key]
        theirs = self._versions.get(key)
        if theirs is not None:
            version = min(spec.version_max, theirs.max_version)
            if version >= max(spec.version_min, theirs.min_version):
                return version
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{self.address} has no version of {spec.name} that we have",
        )

    async def request(
        self,
        message: Message,
        response_type: type[R],
        *,
        timeout_s: float,
        version: int | None = None,
    ) -> R:
        """Send `message` and wait for its answer; waits for room first if too much is in flight.

        `timeout_s` starts when it is sent. Raises ConnectionLost, ConnectionClosed,
        RequestTimedOut, or KafkaError if there is no common version.
        """
        await self.wait_room()
        return await self.request_nowait(
            message, response_type, timeout_s=timeout_s, version=version
        )

    def request_nowait(
        self,
        message: Message,
        response_type: type[R],
        *,
        timeout_s: float,
        version: int | None = None,
    ) -> asyncio.Future[R]:
        """Send `message` now, or raise WouldBlock; the future gets the answer."""
        self._check_usable()
        if not self.has_room:
            raise WouldBlock(f"{self.address} has {len(self._pending)} requests in flight")
        spec = _SPECS_BY_REQUEST[type(message).__name__]
        chosen = self.version_of(spec.key) if version is None else version
        correlation_id = self._write(message, spec, chosen)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        future.add_done_callback(_retrieve)
        timer = loop.call_later(timeout_s, self._time_out, spec.name, timeout_s)
        self._pending.append(_Pending(spec, chosen, correlation_id, response_type, future, timer))
        return future

    async def send_unanswered(self, message: Message, *, version: int | None = None) -> None:
        """Send a request that the broker never answers: Produce with acks=0 (T9)."""
        await self.wait_room()
        self._check_usable()
        spec = _SPECS_BY_REQUEST[type(message).__name__]
        self._write(message, spec, self.version_of(spec.key) if version is None else version)

    def send_unanswered_nowait(self, message: Message, *, version: int) -> None:
        """The same, now, or raise WouldBlock."""
        self._check_usable()
        if self._write_paused:
            raise WouldBlock(f"{self.address} does not take more bytes")
        self._write(message, _SPECS_BY_REQUEST[type(message).__name__], version)

    def close(self) -> None:
        """End the connection; requests in flight fail with ConnectionClosed.

        Bytes already written are still sent: they may hold requests that expect no answer.
        """
        if self._transport is not None:
            self._transport.close()
        self._end(ConnectionClosed(f"connection to {self.address} was closed"))

    async def wait_room(self, timeout_s: float | None = None) -> None:
        """Wait until a request may be sent, or the connection has ended.

        A peer that makes no room in time ends it: where nothing is answered, nothing else would.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._fault is None and not self.has_room:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            self._end(RequestTimedOut(f"{self.address} took nothing within {timeout_s} s"))

    def _check_usable(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _write(self, message: Message, spec: ApiSpec, version: int) -> int:
        correlation_id = self._correlation_id
        self._correlation_id = 0 if correlation_id == _CORRELATION_ID_MAX else correlation_id + 1
        chunks = encode_request(
            message,
            spec=spec,
            version=version,
            correlation_id=correlation_id,
            client_id=self._client_id,
        )
        assert self._transport is not None
        self._transport.writelines(chunks)
        return correlation_id

    async def _negotiate(self, timeout_s: float) -> None:
        version = ApiVersionsRequest.version_max
        response = await self._ask_versions(version, timeout_s)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = (r.max_version for r in response.api_keys if r.api_key == ApiKey.API_VERSIONS)
            version = max(0, min(next(offered, 0), version - 1))
            response = await self._ask_versions(version, timeout_s)
        check(response.error_code, f"{self.address} refuses to name its versions")
        self._versions = {offer.api_key: offer for offer in response.api_keys}

    async def _ask_versions(self, version: int, timeout_s: float) -> ApiVersionsResponse:
        message = ApiVersionsRequest(
            client_software_name="tidemill", client_software_version="internal"
        )
        return await self.request(
            message, ApiVersionsResponse, timeout_s=timeout_s, version=version
        )

    # --- what the event loop calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._buffer.received(nbytes):
                self._answer(frame)
        except ProtocolViolation as violation:
            self._end(ConnectionLost(f"{self.address} broke the protocol: {violation}"))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = str(exc) if exc is not None else "the broker closed the connection"
        self._end(ConnectionLost(f"{self.address}: {reason}"))

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._room.set()

    # --- answers ---------------------------------------------------------------------------------

    def _answer(self, frame: memoryview) -> None:
        if not self._pending:
            raise ProtocolViolation("an answer without a request")
        pending = self._pending[0]
        spec, version = pending.spec, pending.version
        correlation_id, body_at = parse_response_header(frame, spec=spec, version=version)
        if correlation_id != pending.correlation_id:
            raise ProtocolViolation(
                f"answer {correlation_id} where {pending.correlation_id} was due ({spec.name})"
            )
        if spec.key is ApiKey.API_VERSIONS and frame[body_at:][:2] == _UNSUPPORTED_VERSION:
            version = 0  # the refusal of our version is encoded in version 0 (T2)
        reader = Reader(frame, RESPONSE_OBJECTS_MAX, body_at)
        response = pending.response_type.read(reader, version)
        reader.finish()
        self._pending.popleft()
        pending.timer.cancel()
        self._room.set()
        if not pending.future.done():
            pending.future.set_result(response)

    def _time_out(self, api_name: str, timeout_s: float) -> None:
        self._end(
            RequestTimedOut(f"{self.address} did not answer {api_name} within {timeout_s:g} s")
        )

    def _end(self, fault: TidemillError) -> None:
        """Make the connection unusable; the first fault is kept."""
        if self._fault is not None:
            return
        self._fault = fault
        self._room.set()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        while self._pending:
            pending = self._pending.popleft()
            pending.timer.cancel()
            if not pending.future.done():
                pending.future.set_exception(fault)


def _reason(error: OSError) -> str:
    """The system's message; asyncio puts the address into `strerror`, resolvers set no errno."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error) or "no answer"


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark the exception as seen: asyncio must not warn if the caller stopped waiting."""
    if not future.cancelled():
        future.exception()
