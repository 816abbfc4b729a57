"""Kafka's key hash: the 32-bit murmur2 of the Java client's default partitioner."""

from __future__ import annotations

__all__ = ["murmur2", "partition_for"]


def murmur2(data: bytes) -> int:
    """The hash as an unsigned 32-bit number."""
    length = len(data)
    state = (0x9747B28C ^ length) & 0xFFFFFFFF
    position = 0
    while length - position >= 4:
        word = (
            data[position]
            | data[position + 1] << 8
            | data[position + 2] << 16
            | data[position + 3] << 24
        )
        word = (word * 0x5BD1E995) & 0xFFFFFFFF
        word ^= word >> 24
        word = (word * 0x5BD1E995) & 0xFFFFFFFF
        state = (state * 0x5BD1E995) & 0xFFFFFFFF
        state ^= word
        position += 4
    tail = length - position
    if tail > 2:
        state ^= data[position + 2] << 16
    if tail > 1:
        state ^= data[position + 1] << 8
    if tail > 0:
        state ^= data[position]
        state = (state * 0x5BD1E995) & 0xFFFFFFFF
    state ^= state >> 13
    state = (state * 0x5BD1E995) & 0xFFFFFFFF
    return state ^ (state >> 15)


def partition_for(key: bytes, partition_count: int) -> int:
    """The partition that Java's default partitioner picks for `key`."""
    if partition_count < 1:
        raise ValueError("a topic has at least one partition")
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
