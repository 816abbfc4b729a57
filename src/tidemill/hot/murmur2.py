"""Kafka's key hash: the 32-bit murmur2 of the Java client's default partitioner."""

from __future__ import annotations

__all__ = ["murmur2", "murmur2_range", "partition_for"]

# Constants beyond 31 bits have names: a literal would be a Python object in the compiled loop.
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash as an unsigned 32-bit number."""
    return murmur2_range(data, 0, len(data))


def murmur2_range(data: bytes | bytearray | memoryview, start: int, end: int) -> int:
    """The hash of `data[start:end]`."""
    if not 0 <= start <= end <= len(data):
        raise ValueError("range outside the buffer")
    state = (_SEED ^ (end - start)) & _MASK
    position = start
    while end - position >= 4:
        word = (
            data[position]
            | data[position + 1] << 8
            | data[position + 2] << 16
            | data[position + 3] << 24
        )
        word = (word * 0x5BD1E995) & _MASK
        word ^= word >> 24
        word = (word * 0x5BD1E995) & _MASK
        state = (state * 0x5BD1E995) & _MASK
        state ^= word
        position += 4
    tail = end - position
    if tail > 2:
        state ^= data[position + 2] << 16
    if tail > 1:
        state ^= data[position + 1] << 8
    if tail > 0:
        state ^= data[position]
        state = (state * 0x5BD1E995) & _MASK
    state ^= state >> 13
    state = (state * 0x5BD1E995) & _MASK
    return state ^ (state >> 15)


def partition_for(key: bytes, partition_count: int) -> int:
    """The partition that Java's default partitioner picks for `key`."""
    if partition_count < 1:
        raise ValueError("a topic has at least one partition")
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
