"""Requests come out whole however their bytes arrive; memory grows only with received bytes."""

from __future__ import annotations

import struct

import pytest

from tidemill.core.errors import ProtocolViolation
from tidemill.server.connection.receive_buffer import LENGTH_BYTES, ReceiveBuffer, Scratch
from tidemill.server.limits.memory_pool import MemoryPool

REQUEST_BYTES_MAX = 1 << 20


def _frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _buffer(pool: MemoryPool | None = None) -> ReceiveBuffer:
    return ReceiveBuffer(Scratch(), pool or MemoryPool(1 << 30), REQUEST_BYTES_MAX)


def _feed(buffer: ReceiveBuffer, data: bytes) -> list[bytes]:
    """Treat the bytes of one or more reads as a connection does."""
    requests = []
    while data:
        space = buffer.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        data = data[count:]
        view, position = buffer.received(count), 0
        while end := buffer.next_request_end(view, position):
            requests.append(bytes(view[position + LENGTH_BYTES : end]))
            position = end
        buffer.keep(view[position:])
    return requests


def test_whole_requests_in_one_read_are_found_without_an_own_buffer():
    pool = MemoryPool(1 << 30)
    buffer = _buffer(pool)
    bodies = [b"a" * 10, b"b" * 1000, b"c" * 12]
    assert _feed(buffer, b"".join(map(_frame, bodies))) == bodies
    assert not buffer.has_part
    assert pool.used_bytes == 0


@pytest.mark.parametrize("step", [1, 3, 7, 4096])
def test_S9_requests_that_arrive_in_pieces_come_out_whole(step):
    bodies = [bytes([n]) * (50 * n + 10) for n in range(20)]
    stream = b"".join(map(_frame, bodies))
    buffer = _buffer()
    got = []
    for start in range(0, len(stream), step):
        got += _feed(buffer, stream[start : start + step])
    assert got == bodies


def test_S2_memory_grows_with_the_bytes_that_came_not_with_the_announced_size():
    pool = MemoryPool(1 << 30)
    buffer = _buffer(pool)
    _feed(buffer, struct.pack(">i", REQUEST_BYTES_MAX) + b"x" * 1000)
    assert pool.used_bytes <= 8192


def test_S2_a_buffer_that_the_pool_cannot_grow_is_starved_until_there_is_room():
    pool = MemoryPool(20_000)
    first, second = _buffer(pool), _buffer(pool)
    _feed(first, struct.pack(">i", 100_000) + b"x" * 100)
    _feed(second, struct.pack(">i", 100_000) + b"y" * 4092)
    assert second.starved
    first.release()
    assert second.try_grow()
    assert not second.starved


def test_a_large_request_arrives_intact_and_gives_its_memory_back():
    pool = MemoryPool(1 << 30)
    buffer = _buffer(pool)
    body = bytes(range(256)) * 4000
    assert _feed(buffer, _frame(body) + _frame(b"next one here")) == [body, b"next one here"]
    assert pool.used_bytes == 0


@pytest.mark.parametrize("size", [-1, 0, REQUEST_BYTES_MAX + 1, 0x47455420])
def test_S1_a_senseless_size_is_refused_before_anything_is_buffered(size):
    with pytest.raises(ProtocolViolation):
        _feed(_buffer(), struct.pack(">i", size))


def test_S2_a_read_brings_little_while_memory_is_short():
    pool = MemoryPool(1 << 20)
    buffer = _buffer(pool)
    assert len(buffer.space()) > 100_000
    pool.take(1 << 20)
    assert len(buffer.space()) <= 4096


def test_S2_a_buffer_that_is_done_is_no_longer_starved():
    pool = MemoryPool(8192)
    buffer = _buffer(pool)
    pool.take(8192)
    _feed(buffer, struct.pack(">i", 100_000) + b"x" * 4092)
    assert buffer.starved
    buffer.release()
    assert not buffer.starved
    assert pool.used_bytes == 8192
