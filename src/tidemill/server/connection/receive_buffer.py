"""Where arriving bytes go until they make a whole request.

HOT PATH: one `space` and one `received` per read from a socket.

A broker with 15,000 connections cannot give each a megabyte to read into, and a fast one cannot
copy every request twice. So all connections of a listener read into one shared scratch area: a read
that brings whole requests is worked on in place, without a copy. What is left over, the head of a
request whose rest is still on its way, moves into a buffer of the connection's own, into which the
rest is then read directly. That buffer grows with the bytes that really came (S2), and goes when
the request is done.
"""

from __future__ import annotations

from typing import final

from tidemill.core.limits import KIB, MIB
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.wire.frames import parse_frame_length

__all__ = ["ReceiveBuffer", "Scratch"]

LENGTH_BYTES = 4
SCRATCH_BYTES = 512 * KIB
OWN_BYTES_MIN = 4 * KIB
GROWTH = 4
"""An own buffer is at most this many times the bytes received, so a lie costs its teller bandwidth.
"""
SPARE_BYTES_MAX = 8 * MIB


def capacity_for(size: int) -> int:
    """Buffers come in powers of two, so that they fit one another's place."""
    return 1 << max(size - 1, OWN_BYTES_MIN - 1).bit_length()


@final
class Scratch:
    """The shared reading area of one event loop, and a few spare buffers to reuse.

    Fresh megabytes cost a page fault per 4 KiB; a spare buffer is warm already.
    """

    def __init__(self) -> None:
        self.area = memoryview(bytearray(SCRATCH_BYTES))
        self.narrow_area = self.area[:OWN_BYTES_MIN]
        """For reads while memory is short: what cannot be worked on at once must be kept."""
        self._spares: dict[int, list[bytearray]] = {}
        self._spare_bytes = 0

    def buffer(self, capacity: int) -> bytearray:
        """A buffer of exactly so many bytes, which `capacity_for` gave; of any content."""
        spares = self._spares.get(capacity)
        if spares:
            self._spare_bytes -= capacity
            return spares.pop()
        return bytearray(capacity)

    def reuse(self, buffer: bytearray) -> None:
        """Keep a buffer that nobody looks at any more, within bounds."""
        if self._spare_bytes + len(buffer) <= SPARE_BYTES_MAX:
            self._spare_bytes += len(buffer)
            self._spares.setdefault(len(buffer), []).append(buffer)


@final
class ReceiveBuffer:
    """The bytes of one connection that do not make a whole request yet."""

    __slots__ = ("_fill", "_own", "_pool", "_request_bytes_max", "_scratch", "starved")

    def __init__(self, scratch: Scratch, pool: MemoryPool, request_bytes_max: int) -> None:
        self._scratch = scratch
        self._pool = pool
        self._request_bytes_max = request_bytes_max
        self._own: bytearray | None = None
        self._fill = 0
        self.starved = False
        """The pool had no room: stop reading and call `try_grow` when it has."""

    @property
    def has_part(self) -> bool:
        """Whether a request has begun to arrive and has not ended."""
        return self._fill > 0

    def space(self) -> memoryview:
        """Where the next bytes shall go."""
        if self._own is not None:
            return memoryview(self._own)[self._fill :]
        pool = self._pool
        is_short = pool.limit_bytes - pool.used_bytes < SCRATCH_BYTES
        return self._scratch.narrow_area if is_short else self._scratch.area

    def received(self, count: int) -> memoryview:
        """`count` bytes were put into `space()`: all bytes that have come so far."""
        if self._own is None:
            return self._scratch.area[:count]
        self._fill += count
        return memoryview(self._own)[: self._fill]

    def next_request_end(self, data: memoryview, start: int) -> int:
        """The end of the request that begins at `start`, or 0 if it is not all there."""
        if len(data) - start < LENGTH_BYTES:
            return 0
        size = parse_frame_length(data[start : start + LENGTH_BYTES], self._request_bytes_max)
        end = start + LENGTH_BYTES + size
        return end if end <= len(data) else 0

    def keep(self, rest: memoryview) -> None:
        """`rest` was not worked on: hold it until more bytes or a better moment come."""
        count = len(rest)
        old = self._own
        if count == 0:
            self.release()
        elif old is not None and count == self._fill:
            self.try_grow()
        else:
            self._move(rest, count)

    def _move(self, rest: memoryview, count: int) -> None:
        """Into a buffer of our own, away from the scratch area or from requests that are done.

        The bytes are here already, so they are accounted for, not asked for; room for more is.
        """
        old = self._own
        wanted = self._wanted(rest, count)
        affordable = wanted if wanted <= self._pool.free_bytes else count
        own = self._scratch.buffer(capacity_for(affordable))
        own[:count] = rest
        self._pool.take(len(own))
        self.release()
        self._own, self._fill = own, count
        if old is not None:
            rest.release()
        self.try_grow()

    def _wanted(self, data: memoryview, count: int) -> int:
        if count < LENGTH_BYTES:
            return OWN_BYTES_MIN
        size = LENGTH_BYTES + parse_frame_length(data[:LENGTH_BYTES], self._request_bytes_max)
        return max(count, min(size, max(OWN_BYTES_MIN, GROWTH * count)))

    def try_grow(self) -> bool:
        """Make room for the rest of the request; False (and `starved`) if the pool says no."""
        own = self._own
        if own is None or self._fill < len(own):
            self.starved = False
            return True
        wanted = self._wanted(memoryview(own), self._fill)
        capacity = capacity_for(max(wanted, self._fill + 1))
        if not self._pool.try_take(capacity - len(own), self):
            self.starved = True
            return False
        larger = self._scratch.buffer(capacity)
        larger[: self._fill] = memoryview(own)[: self._fill]
        self._own = larger
        self._scratch.reuse(own)
        self.starved = False
        return True

    def release(self) -> None:
        """Everything was worked on, or the connection is gone."""
        own, self._own, self._fill = self._own, None, 0
        self.starved = False
        if own is not None:
            self._scratch.reuse(own)
            self._pool.give(len(own), self)
