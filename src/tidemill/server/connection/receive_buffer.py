"""Where arriving bytes go until they make a whole request.

HOT PATH: one `space` and one `received` per read from a socket.

A broker with 15,000 connections cannot give each a megabyte to read into, and a fast one cannot
copy every request twice. So all connections of a listener read into one shared scratch area. Whole
requests are handled there in place, without a copy. The head of a request that has not arrived in
full moves into a buffer of the connection's own, and the rest is read directly into that. The
buffer grows with the bytes that have arrived (S2) and is released when the request is handled.

The pool counts what buffers cost the process, not what they hold (`memory_blocks.py`). While a
buffer grows, both the old and the new one count.

A request that is handled in several slices outlives this. `hold_frame` lets it have the
connection's own buffer; what lies in the shared area it must copy. Both stay in the pool's count.
"""

from __future__ import annotations

from typing import Final, final

from tidemill.core.limits import KIB, MIB
from tidemill.server.limits.memory_blocks import Block, cost_of, make_block
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.wire.frames import parse_frame_length

__all__ = ["HeldFrame", "ReceiveBuffer", "Scratch", "divide_request_memory"]

LENGTH_BYTES: Final = 4
SCRATCH_BYTES: Final = 512 * KIB
OWN_BYTES_MIN: Final = 4 * KIB
GROWTH: Final = 4
"""An own buffer is at most this many times the bytes received: a false length costs bandwidth."""
SPARE_BYTES_MAX: Final = 8 * MIB
KEPT_VIEW_BYTES: Final = 512
"""Counted for each view that is kept: the objects of its part of the request and of the answer."""


def capacity_for(size: int) -> int:
    """The size of a buffer for `size` bytes: one of a few up to 1 MiB, so that it can be reused."""
    if size > MIB:
        return -(-size // MIB) * MIB
    return 1 << max(size - 1, OWN_BYTES_MIN - 1).bit_length()


def divide_request_memory(total_bytes: int, request_bytes_max: int) -> tuple[int, int]:
    """The limit of the pool, and the bytes for spare buffers.

    The rest is for the one request that may exceed the limit, and the buffer that it grows out of.
    """
    spare_bytes = min(SPARE_BYTES_MAX, total_bytes // 32)
    beyond_bytes = capacity_for(request_bytes_max + LENGTH_BYTES) * (GROWTH + 1) // GROWTH
    return max(total_bytes - spare_bytes - beyond_bytes, total_bytes // 8), spare_bytes


@final
class Scratch:
    """The shared reading area of one event loop, and a few spare buffers to reuse.

    Fresh memory costs a page fault per 4 KiB; a spare buffer is already mapped.
    """

    def __init__(self, spare_bytes_max: int) -> None:
        self.area = memoryview(bytearray(SCRATCH_BYTES))
        self.narrow_area = self.area[:OWN_BYTES_MIN]
        """For reads while memory is short: bytes that cannot be handled at once must be kept."""
        self._spares: dict[int, list[Block]] = {}
        self._spare_bytes_max = spare_bytes_max
        self.spare_bytes = 0

    def buffer(self, capacity: int) -> Block:
        """A buffer of `capacity` bytes, a result of `capacity_for`; its content is undefined."""
        spares = self._spares.get(capacity)
        if spares:
            self.spare_bytes -= capacity
            return spares.pop()
        return make_block(capacity)

    def reuse(self, buffer: Block) -> None:
        """Keep a buffer that is no longer in use as a spare, within bounds."""
        if self.spare_bytes + len(buffer) <= self._spare_bytes_max:
            self.spare_bytes += len(buffer)
            self._spares.setdefault(len(buffer), []).append(buffer)


@final
class HeldFrame:
    """The bytes of a request in several slices: unchanged, and counted, until `release`."""

    __slots__ = ("_buffer", "_counted_bytes", "_receive")

    def __init__(self, receive: ReceiveBuffer, buffer: Block | None) -> None:
        self._receive = receive
        self._buffer = buffer
        """None: the request lies in the shared area."""
        self._counted_bytes = 0

    def keep(self, view: memoryview) -> memoryview:
        """The same bytes, valid until `release`."""
        count = KEPT_VIEW_BYTES
        if self._buffer is None:
            view = memoryview(bytearray(view))
            count += len(view)
        self._counted_bytes += count
        self._receive.pool.take(count)
        return view

    def release(self) -> None:
        """The request needs its bytes no more."""
        buffer, self._buffer = self._buffer, None
        count, self._counted_bytes = self._counted_bytes, 0
        self._receive.give_held(buffer, count)


@final
class ReceiveBuffer:
    """The bytes of one connection that do not make a whole request yet."""

    __slots__ = ("_fill", "_is_held", "_own", "_request_bytes_max", "_scratch", "pool", "starved")

    def __init__(self, scratch: Scratch, pool: MemoryPool, request_bytes_max: int) -> None:
        self._scratch = scratch
        self.pool = pool
        self._request_bytes_max = request_bytes_max
        self._own: Block | None = None
        self._fill = 0
        self._is_held = False
        """A request in several slices has one of our buffers."""
        self.starved = False
        """The pool had no bytes left: stop reading, and call `try_grow` when it has some."""

    @property
    def has_part(self) -> bool:
        """Whether part of a request has arrived."""
        return self._fill > 0

    def space(self) -> memoryview:
        """Where to read the next bytes into."""
        if self._own is not None:
            return memoryview(self._own)[self._fill :]
        pool = self.pool
        is_short = pool.limit_bytes - pool.used_bytes < SCRATCH_BYTES
        return self._scratch.narrow_area if is_short else self._scratch.area

    def received(self, count: int) -> memoryview:
        """`count` bytes were read into `space()`; returns all bytes that are not handled yet."""
        if self._own is None:
            return self._scratch.area[:count]
        self._fill += count
        return memoryview(self._own)[: self._fill]

    def next_request_end(self, data: memoryview, start: int) -> int:
        """The end of the request that begins at `start`, or 0 if it has not arrived in full."""
        if len(data) - start < LENGTH_BYTES:
            return 0
        size = parse_frame_length(data[start : start + LENGTH_BYTES], self._request_bytes_max)
        end = start + LENGTH_BYTES + size
        return end if end <= len(data) else 0

    def keep(self, rest: memoryview) -> None:
        """Hold `rest`, which is not handled, until more bytes arrive or requests may start."""
        count = len(rest)
        old = self._own
        if count == 0:
            self.release()
        elif old is not None and count == self._fill:
            self.try_grow()
        else:
            self._move(rest, count)

    def _move(self, rest: memoryview, count: int) -> None:
        """Copy `rest` into a fresh own buffer, from the scratch area or from handled requests.

        These bytes have arrived, so the pool must count them; only room for more may be refused.
        """
        old = self._own
        wanted = self._wanted(rest, count)
        is_affordable = cost_of(capacity_for(wanted)) <= self.pool.free_bytes
        capacity = capacity_for(wanted if is_affordable else count)
        self.pool.take(cost_of(capacity))
        own = self._scratch.buffer(capacity)
        own[:count] = rest
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
        """Make room for the rest of the request; False (and `starved`) if the pool refuses."""
        own = self._own
        if own is None or self._fill < len(own):
            self.starved = False
            return True
        wanted = self._wanted(memoryview(own), self._fill)
        capacity = capacity_for(max(wanted, self._fill + 1))
        if not self.pool.try_take(cost_of(capacity), self):
            self.starved = True
            return False
        larger = self._scratch.buffer(capacity)
        larger[: self._fill] = memoryview(own)[: self._fill]
        self._own = larger
        self._scratch.reuse(own)
        self.starved = False
        self.pool.give(cost_of(len(own)))
        return True

    def release(self) -> None:
        """Give the own buffer back: all its bytes are handled, or the connection is gone."""
        own, self._own, self._fill = self._own, None, 0
        self.starved = False
        if own is not None:
            self._scratch.reuse(own)
            self.pool.give(cost_of(len(own)), None if self._is_held else self)

    def hold_frame(self) -> HeldFrame:
        """Let the request that is being handled have its bytes; `keep` the rest afterwards."""
        own, self._own, self._fill = self._own, None, 0
        self._is_held = own is not None
        return HeldFrame(self, own)

    def give_held(self, buffer: Block | None, counted_bytes: int) -> None:
        """The request has ended: take its buffer back, and uncount what it kept."""
        size = counted_bytes
        if buffer is not None:
            self._is_held = False
            self._scratch.reuse(buffer)
            size += cost_of(len(buffer))
        self.pool.give(size, self if self._own is None else None)
