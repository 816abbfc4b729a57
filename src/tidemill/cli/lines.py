"""Lines from standard input as they arrive, without blocking the event loop.

The loop's reader waits for a pipe or a terminal; a file is always ready. A stream without a
descriptor (in a test) is simply read.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from typing import BinaryIO

from tidemill.core.errors import UserError
from tidemill.core.limits import KIB, MIB
from tidemill.core.loop.pacing import next_turn

__all__ = ["read_lines"]

_CHUNK_BYTES = 64 * KIB
LINE_BYTES_MAX = 16 * MIB
"""More than any broker accepts in one record."""


async def read_lines(stream: BinaryIO) -> AsyncIterator[bytes]:
    """Each line without its newline; the last line needs none."""
    rest = b""
    while chunk := await _read_chunk(stream):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise UserError(f"a line is longer than {LINE_BYTES_MAX} bytes; no broker accepts that")
        for line in lines:
            yield line
        await next_turn()
    if rest:
        yield rest


async def _read_chunk(stream: BinaryIO) -> bytes:
    try:
        descriptor = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return stream.read(_CHUNK_BYTES)
    await _wait_readable(descriptor)
    return os.read(descriptor, _CHUNK_BYTES)


async def _wait_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:
        return  # epoll does not accept files: they are always ready
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
