"""Standard error of the supervisor: the lines of all brokers, each with its broker's name.

A broker that waits for its log stands still, and its peers would take it for dead. So brokers never
wait: what they write is always read, and what standard error does not take (a paused terminal, a
pipe that nobody reads) is kept up to a bound and then dropped and counted.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import final

from tidemill.cli.supervising.kept_lines import KeptLines
from tidemill.cli.text import escape_bytes

__all__ = ["LogOutput", "relay_lines"]

LINE_BYTES_MAX = 16 * 1024
"""A longer line is shown in pieces: a program may write without ever ending its line."""
FLUSH_S = 1.0


@final
class LogOutput:
    """Lines out, in order, without waiting. Owned by one event loop, which must not be uvloop's:
    that would make a terminal non-blocking for every other program on it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = KeptLines(descriptor, prefix="[supervisor] ")
        self._is_waiting = False
        self._emptied = asyncio.Event()
        self._emptied.set()

    def say(self, line: str) -> None:
        """Show a line; it is dropped if too much is waiting."""
        self._kept.add(line)
        if self._kept and not self._is_waiting:
            self._emptied.clear()
            self._begin()

    async def flush(self) -> None:
        """Give standard error a second to take the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._emptied.wait()

    def _begin(self) -> None:
        try:
            asyncio.get_running_loop().add_writer(self._descriptor, self._write_some)
        except PermissionError:  # a file or /dev/null: never blocks, and cannot be polled
            while self._kept:
                self._write_some()
        else:
            self._is_waiting = True

    def _write_some(self) -> None:
        self._kept.write_some()
        if not self._kept:
            self._end()

    def _end(self) -> None:
        if self._is_waiting:
            asyncio.get_running_loop().remove_writer(self._descriptor)
            self._is_waiting = False
        self._emptied.set()


async def relay_lines(stream: asyncio.StreamReader, output: LogOutput, prefix: str) -> None:
    """Show the lines of a stream until it ends, control characters escaped."""
    part = b""
    while data := await stream.read(LINE_BYTES_MAX):
        *lines, part = (part + data).split(b"\n")
        if len(part) >= LINE_BYTES_MAX:
            lines, part = [*lines, part], b""
        for line in lines:
            output.say(prefix + escape_bytes(line))
    if part:
        output.say(prefix + escape_bytes(part))
