"""Chooses the partition of a record for which the caller names none.

Keys are placed as Java's default producer places them, so that Tidemill's tools and any Java
producer put a key into the same partition. librdkafka's default (crc32) differs.
"""

from __future__ import annotations

from typing import Protocol, final

from tidemill.core.rng import Rng
from tidemill.hot.murmur2 import partition_for

__all__ = ["KeyPartitioner", "Partitioner", "RandomPartitioner", "RoundRobin"]


class Partitioner(Protocol):
    """Chooses among `partition_count` partitions; called once per record."""

    def partition(self, key: bytes | None, partition_count: int) -> int: ...


@final
class RoundRobin:
    """Takes the partitions in turn and ignores the key."""

    def __init__(self) -> None:
        self._next = 0

    def partition(self, key: bytes | None, partition_count: int) -> int:
        chosen = self._next % partition_count
        self._next = chosen + 1
        return chosen


@final
class RandomPartitioner:
    """Takes a random partition and ignores the key."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def partition(self, key: bytes | None, partition_count: int) -> int:
        return self._rng.below(partition_count)


@final
class KeyPartitioner:
    """Takes the hash of the key; `keyless` places records without a key."""

    def __init__(self, keyless: Partitioner) -> None:
        self._keyless = keyless

    def partition(self, key: bytes | None, partition_count: int) -> int:
        if key is None:
            return self._keyless.partition(key, partition_count)
        return partition_for(key, partition_count)
