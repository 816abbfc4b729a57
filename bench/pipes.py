"""One request sent again and again over plain sockets: the broker without the client.

Each connection keeps `in_flight` requests under way: it sends as many copies of its request as it
got answers. All answers to one request have the same size and the same bytes but for an offset, so
that they are checked by strides over the received bytes, not one by one: a driver that is cheaper
than the broker, in Python.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from bench.processes import MeasurementFailed
from bench.wire_client import Address, connect, parse_answer, read_frame, request_frame
from tidemill.core.error_codes import ErrorCode
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.headers import encode_response
from tidemill.wire.message import Message

__all__ = ["Exchange", "Pipe", "drive_pipes"]

RECEIVE_BYTES = 256 << 10
SECONDS_MAX = 120.0
_WAIT_S = 10.0
_RETRY_S = 0.02
_NOT_YET = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


@final
@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and where its answer has the error code that must stay zero."""

    request: Message
    api_key: ApiKey
    version: int
    response_type: type[Message]
    entry: Callable[[Any], Any]
    """From the answer to the struct whose `error_code` counts."""

    def frame(self) -> bytes:
        return request_frame(self.request, self.api_key, self.version)

    def parse(self, frame: bytes) -> Any:  # noqa: ANN401 - a response_type
        return parse_answer(frame, self.response_type, self.api_key, self.version)

    def error_position(self, frame: bytes) -> int:
        """Where the low byte of the error code lies in answers of this shape."""
        answer = self.parse(frame)
        if self._encode(answer) != frame:
            raise MeasurementFailed("the first answer cannot be written again as it was read")
        self.entry(answer).error_code = 1
        changed = self._encode(answer)
        pairs = enumerate(zip(frame, changed, strict=True))
        return next(i for i, (old, new) in pairs if old != new)

    def _encode(self, answer: Message) -> bytes:
        spec = API_SPECS[self.api_key]
        return b"".join(encode_response(answer, spec=spec, version=self.version, correlation_id=1))


def drive_pipes(pipes: list[Pipe], seconds: float) -> tuple[int, float]:
    """Keep every connection full for so long, then wait for what is under way: answers, seconds."""
    assert seconds <= SECONDS_MAX
    began = time.monotonic()
    try:
        _run(pipes, began + seconds)
        took_s = time.monotonic() - began
    finally:
        for pipe in pipes:
            pipe.socket.close()
    return sum(pipe.answered for pipe in pipes), took_s


def _run(pipes: list[Pipe], deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            pipe.fill()
            selector.register(pipe.socket, selectors.EVENT_READ, pipe)
        while any(pipe.waiting for pipe in pipes):
            ready = selector.select(_WAIT_S)
            if not ready:
                raise MeasurementFailed(f"no answer for {_WAIT_S:g} s")
            goes_on = time.monotonic() < deadline
            for key, _ in ready:
                key.data.take_answers()
                if goes_on:
                    key.data.fill()


@final
class Pipe:
    """One connection, and how many of its requests are under way."""

    def __init__(self, address: Address, exchange: Exchange, in_flight: int) -> None:
        request = exchange.frame()
        self.socket: socket.socket = connect(address)
        self.answered = 0
        self.waiting = 0
        self._request_bytes = len(request)
        self._full = memoryview(request * in_flight)
        self._in_flight = in_flight
        self._received = bytearray()
        self._answer = self._first_answer(exchange, request)
        self._error_at = exchange.error_position(self._answer)

    def _first_answer(self, exchange: Exchange, request: bytes) -> bytes:
        """A broker may have told of a new leader a moment before it is one."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            self.socket.sendall(request)
            frame = read_frame(self.socket)
            error = exchange.entry(exchange.parse(frame)).error_code
            if not error:
                return frame
            if error not in _NOT_YET or time.monotonic() > deadline:
                raise MeasurementFailed(f"the first request was refused with error {error}")
            time.sleep(_RETRY_S)

    def fill(self) -> None:
        """Send until `in_flight` requests are under way."""
        missing = self._in_flight - self.waiting
        if missing:
            self.socket.sendall(self._full[: missing * self._request_bytes])
            self.waiting = self._in_flight

    def take_answers(self) -> None:
        """Read what has come, and count the whole answers in it."""
        chunk = self.socket.recv(RECEIVE_BYTES)
        if not chunk:
            raise MeasurementFailed("the broker closed the connection")
        self._received += chunk
        size = len(self._answer)
        count = len(self._received) // size
        self._check(count, size)
        del self._received[: count * size]
        self.answered += count
        self.waiting -= count

    def _check(self, count: int, size: int) -> None:
        """Every answer has the size of the first one (low byte of its length) and no error."""
        end = count * size
        data = self._received
        errors = data[self._error_at : end : size].count(0)
        lengths = data[3:end:size].count(self._answer[3])
        if not errors == lengths == count:
            raise MeasurementFailed("an answer with an error, or of another size than the first")
