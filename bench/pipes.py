"""One request sent again and again over plain sockets: the broker without the client.

Each connection keeps `in_flight` requests in flight: for each answer it sends another copy of its
request. This module connects, reads the first answer and finds the error code in it; the loop is in
`pipes.c`, so that a driver on the same machine takes little CPU from the broker.
"""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from bench.debian_packages import ensure_tool
from bench.processes import MeasurementFailed
from bench.wire_client import Address, connect, parse_answer, read_frame, request_frame
from tidemill.core.error_codes import ErrorCode
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.headers import encode_response
from tidemill.wire.message import Message

__all__ = ["Exchange", "Pipe", "drive_pipes"]

SOURCE = Path(__file__).with_name("pipes.c")
LIBRARY = SOURCE.parent.parent / "build" / "pipes.so"
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
_FAILURES = (
    "",
    "a system call of the driver failed",
    "the broker closed the connection",
    f"no answer for {_WAIT_S:g} s",
    "an answer with an error, or of another size than the first",
)
"""Texts for the codes that `drive` of pipes.c returns."""


@final
@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and the place of the error code in its answer, which must be zero."""

    request: Message
    api_key: ApiKey
    version: int
    response_type: type[Message]
    entry: Callable[[Any], Any]
    """The path from the answer to the struct with the `error_code`."""

    def frame(self) -> bytes:
        return request_frame(self.request, self.api_key, self.version)

    def parse(self, frame: bytes) -> Any:  # noqa: ANN401 - a response_type
        return parse_answer(frame, self.response_type, self.api_key, self.version)

    def error_position(self, frame: bytes) -> int:
        """The position of the error code in answers of this shape."""
        answer = self.parse(frame)
        if self._encode(answer) != frame:
            raise MeasurementFailed("the first answer cannot be written again as it was read")
        self.entry(answer).error_code = 1
        changed = self._encode(answer)
        pairs = enumerate(zip(frame, changed, strict=True))
        return next(i for i, (old, new) in pairs if old != new) - 1

    def _encode(self, answer: Message) -> bytes:
        spec = API_SPECS[self.api_key]
        return b"".join(encode_response(answer, spec=spec, version=self.version, correlation_id=1))


@final
class _DrivenPipe(ctypes.Structure):
    """`struct pipe` of pipes.c."""

    _fields_ = (
        ("fd", ctypes.c_int),
        ("in_flight", ctypes.c_int),
        ("requests", ctypes.c_char_p),
        ("request_bytes", ctypes.c_size_t),
        ("answer", ctypes.c_char_p),
        ("answer_bytes", ctypes.c_size_t),
        ("error_at", ctypes.c_size_t),
        ("part", ctypes.c_void_p),
        ("part_bytes", ctypes.c_size_t),
        ("waiting", ctypes.c_int),
        ("answered", ctypes.c_long),
    )


@final
class Pipe:
    """One connection and its request."""

    def __init__(self, address: Address, exchange: Exchange, in_flight: int) -> None:
        request = exchange.frame()
        self.socket: socket.socket = connect(address)
        answer = self._first_answer(exchange, request)
        self.socket.setblocking(True)
        self._part = ctypes.create_string_buffer(len(answer))
        self.driven = _DrivenPipe(
            fd=self.socket.fileno(),
            in_flight=in_flight,
            requests=request * in_flight,
            request_bytes=len(request),
            answer=answer,
            answer_bytes=len(answer),
            error_at=exchange.error_position(answer),
            part=ctypes.addressof(self._part),
        )

    def _first_answer(self, exchange: Exchange, request: bytes) -> bytes:
        """Retry for a moment: a broker may name a new leader shortly before that leader serves."""
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


def drive_pipes(pipes: list[Pipe], seconds: float) -> tuple[int, float]:
    """Keep every connection full for `seconds`, then wait for the rest; answers and seconds."""
    assert seconds <= SECONDS_MAX
    drive = _library().drive
    driven = (_DrivenPipe * len(pipes))(*(pipe.driven for pipe in pipes))
    began = time.monotonic()
    try:
        failure = drive(driven, len(pipes), ctypes.c_double(seconds), int(_WAIT_S * 1000))
        took_s = time.monotonic() - began
    finally:
        for pipe in pipes:
            pipe.socket.close()
    if failure:
        raise MeasurementFailed(_FAILURES[failure])
    return sum(pipe.answered for pipe in driven), took_s


def _library() -> ctypes.CDLL:
    """The compiled loop; built if the source is newer."""
    if not LIBRARY.exists() or LIBRARY.stat().st_mtime < SOURCE.stat().st_mtime:
        lost = "the driver on plain sockets cannot be built"
        if not ensure_tool(
            lambda: shutil.which("gcc") is not None, ["gcc", "libc6-dev"], without=lost
        ):
            raise MeasurementFailed(lost)
        LIBRARY.parent.mkdir(exist_ok=True)
        options = ["-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
        subprocess.run(["gcc", *options, "-o", str(LIBRARY), str(SOURCE)], check=True)
    return ctypes.CDLL(str(LIBRARY))
