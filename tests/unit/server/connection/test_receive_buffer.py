"""Requests come out whole however their bytes arrive; memory grows only with received bytes."""

from __future__ import annotations

import struct

import pytest

from tidemill.core.errors import ProtocolViolation
from tidemill.server.connection.receive_buffer import (
    LENGTH_BYTES,
    SPARE_BYTES_MAX,
    ReceiveBuffer,
    Scratch,
    capacity_for,
    divide_request_memory,
)
from tidemill.server.limits.memory_pool import MemoryPool

REQUEST_BYTES_MAX = 1 << 20


def _frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _buffer(pool: MemoryPool | None = None) -> ReceiveBuffer:
    return ReceiveBuffer(Scratch(SPARE_BYTES_MAX), pool or MemoryPool(1 << 30), REQUEST_BYTES_MAX)


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
    pool = MemoryPool(100_000)
    first, second = _buffer(pool), _buffer(pool)
    _feed(first, struct.pack(">i", 100_000) + b"x" * 5_000)
    _feed(second, struct.pack(">i", 100_000) + b"y" * 16_380)
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


# --- S2: what is counted is what is used ---------------------------------------------------------


@pytest.mark.parametrize("sizes", [[100], [5_000] * 40, [70_000] * 20, [900_000, 100, 300_000]])
def test_S2_the_pool_counts_at_least_what_is_allocated(sizes):
    pool = MemoryPool(1 << 30)
    buffers = [_buffer(pool) for _ in sizes]
    for buffer, size in zip(buffers, sizes, strict=True):
        _feed(buffer, struct.pack(">i", REQUEST_BYTES_MAX))
        for start in range(0, size, 3_000):
            _feed(buffer, b"x" * min(3_000, size - start))
    allocated_bytes = sum(LENGTH_BYTES + size for size in sizes)
    allocated_bytes += sum(len(buffer.space()) for buffer in buffers)
    assert pool.used_bytes >= allocated_bytes
    for buffer in buffers:
        buffer.release()
    assert pool.used_bytes == 0


@pytest.mark.parametrize(("limit_bytes", "grows"), [(98_304, True), (98_303, False)])
def test_S2_both_buffers_count_while_one_grows_out_of_the_other(limit_bytes, grows):
    """16 KiB from the heap, which count twice, and 64 KiB of their own."""
    buffer = _buffer(MemoryPool(limit_bytes))
    _feed(buffer, struct.pack(">i", REQUEST_BYTES_MAX) + b"x" * 4_092)
    assert len(buffer.space()) == 16_384 - 4_096
    _feed(buffer, b"x" * (16_384 - 4_096))
    assert buffer.starved is not grows


def test_S2_a_small_buffer_counts_for_the_holes_that_smaller_ones_left_in_the_heap():
    pool = MemoryPool(1 << 30)
    buffer = _buffer(pool)
    _feed(buffer, struct.pack(">i", REQUEST_BYTES_MAX) + b"x" * 4_096)
    assert pool.used_bytes >= 4_096 + 16_384


def test_a_large_request_takes_hardly_more_than_its_size():
    for size in (1 << 20, 5_000_000, 100 << 20):
        assert size <= capacity_for(size + LENGTH_BYTES) <= size + (1 << 20)


@pytest.mark.parametrize(("total", "largest"), [(256, 100), (64, 16), (32, 16), (16, 8)])
def test_S2_all_parts_of_the_request_memory_stay_within_it(total, largest):
    """Spare buffers, ordinary requests, and the one request that may exceed the limit."""
    mib = 1 << 20
    limit_bytes, spare_bytes = divide_request_memory(total * mib, largest * mib)
    grown = capacity_for(largest * mib + LENGTH_BYTES) * 5 // 4
    assert limit_bytes + spare_bytes + grown <= total * mib
    assert limit_bytes >= total * mib // 8


def test_S2_spare_buffers_are_few():
    scratch = Scratch(100_000)
    for buffer in [scratch.buffer(65_536) for _ in range(3)]:
        scratch.reuse(buffer)
    assert scratch.spare_bytes == 65_536
