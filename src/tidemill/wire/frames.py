"""HOT PATH: frames. Everything travels as an int32 length and that many bytes.

The length is the first thing an untrusted peer sends, so it is checked before a byte is buffered
(S1, T10). The server's connections keep their own buffers and use `parse_frame_length`;
`FrameDecoder` is for clients and tests. It holds only the bytes it was fed: a peer that announces a
huge frame and sends nothing costs four bytes (S2).
"""

from __future__ import annotations

from struct import Struct
from typing import Final, final

from tidemill.core.errors import ProtocolViolation
from tidemill.wire.headers import REQUEST_HEADER_BYTES_MIN
from tidemill.wire.primitives import Buffer

__all__ = ["FRAME_LENGTH_BYTES", "FrameDecoder", "encode_frame", "parse_frame_length"]

_LENGTH: Final = Struct(">i")
FRAME_LENGTH_BYTES: Final = _LENGTH.size

_HTTP_STARTS: Final = frozenset(
    {b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ",
     b"HTTP"}
)  # fmt: skip
_TLS_HANDSHAKE: Final = b"\x16\x03"


def parse_frame_length(
    prefix: Buffer, bytes_max: int, bytes_min: int = REQUEST_HEADER_BYTES_MIN
) -> int:
    """The number of bytes after the four of `prefix`; too few or too many is a violation."""
    length: int = _LENGTH.unpack(prefix)[0]
    if bytes_min <= length <= bytes_max:
        return length
    raise ProtocolViolation(
        f"frame of {length} bytes, allowed {bytes_min} to {bytes_max}{_hint(bytes(prefix))}"
    )


def _hint(prefix: bytes) -> str:
    if prefix in _HTTP_STARTS:
        return ": looks like HTTP on a Kafka port"
    if prefix.startswith(_TLS_HANDSHAKE):
        return ": looks like TLS on a plaintext port"
    return ""


def encode_frame(chunks: list[Buffer]) -> list[Buffer]:
    """Put the length before chunks that have none yet; the chunks are not copied."""
    return [_LENGTH.pack(sum(len(chunk) for chunk in chunks)), *chunks]


@final
class FrameDecoder:
    """Cuts a byte stream into frames, however the bytes arrive."""

    __slots__ = ("_buf", "_bytes_max", "_bytes_min")

    def __init__(self, bytes_max: int, bytes_min: int = REQUEST_HEADER_BYTES_MIN) -> None:
        self._buf = bytearray()
        self._bytes_max = bytes_max
        self._bytes_min = bytes_min

    @property
    def buffered_bytes(self) -> int:
        """Bytes of frames that are not complete yet."""
        return len(self._buf)

    def feed(self, chunk: Buffer) -> list[memoryview]:
        """The frames that `chunk` completes, without their lengths, each in its own memory."""
        self._buf += chunk
        frames: list[memoryview] = []
        start = 0
        with memoryview(self._buf) as view:
            while (end := self._try_frame_end(view, start)) is not None:
                frames.append(memoryview(bytes(view[start + FRAME_LENGTH_BYTES : end])))
                start = end
        del self._buf[:start]
        return frames

    def _try_frame_end(self, view: memoryview, start: int) -> int | None:
        body = start + FRAME_LENGTH_BYTES
        if len(view) < body:
            return None
        end = body + parse_frame_length(view[start:body], self._bytes_max, self._bytes_min)
        return end if end <= len(view) else None
