"""Cuts arriving bytes into response frames and copies each payload at most once.

Bytes arrive in a small scratch area. A frame that is complete there is short and is copied out. An
incomplete frame gets a buffer of its full size, and the rest is read directly into it: the records
of a large Fetch answer are not copied again. Every frame has its own memory, so views of it stay
valid as long as they are held.
"""

from __future__ import annotations

import ctypes
from typing import final

from tidemill.core.limits import KIB
from tidemill.wire.frames import FRAME_LENGTH_BYTES, parse_frame_length
from tidemill.wire.headers import RESPONSE_HEADER_BYTES_MIN

__all__ = ["ResponseBuffer"]

_SCRATCH_BYTES = 16 * KIB

_undefined_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
"""Without a string its bytes are undefined. `bytearray(size)` would write zeros first."""
_undefined_bytearray.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_undefined_bytearray.restype = ctypes.py_object


@final
class ResponseBuffer:
    """The bytes of one connection that do not form a complete response yet."""

    __slots__ = ("_fill", "_frame", "_response_bytes_max", "_scratch")

    def __init__(self, response_bytes_max: int) -> None:
        self._response_bytes_max = response_bytes_max
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._frame: memoryview | None = None
        """The frame being filled; None while bytes go to the scratch area."""
        self._fill = 0
        """Bytes received into the frame, or into the scratch area."""

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        target = self._scratch if self._frame is None else self._frame
        return target[self._fill :]

    def received(self, count: int) -> list[memoryview]:
        """Account for `count` bytes written to `space()`; the frames they complete, in order."""
        self._fill += count
        if self._frame is None:
            return self._cut_scratch()
        if self._fill < len(self._frame):
            return []
        frame, self._frame, self._fill = self._frame, None, 0
        return [frame]

    def _cut_scratch(self) -> list[memoryview]:
        frames: list[memoryview] = []
        start = 0
        while self._fill - start >= FRAME_LENGTH_BYTES:
            body = start + FRAME_LENGTH_BYTES
            size = parse_frame_length(
                self._scratch[start:body], self._response_bytes_max, RESPONSE_HEADER_BYTES_MIN
            )
            if body + size > self._fill:
                self._begin_frame(size, self._scratch[body : self._fill])
                return frames
            frames.append(memoryview(bytes(self._scratch[body : body + size])))
            start = body + size
        rest = bytes(self._scratch[start : self._fill])
        self._scratch[: len(rest)] = rest
        self._fill = len(rest)
        return frames

    def _begin_frame(self, size: int, head: memoryview) -> None:
        # Nobody sees the frame before all of it was written.
        self._frame = memoryview(_undefined_bytearray(None, size))
        self._frame[: len(head)] = head
        self._fill = len(head)
