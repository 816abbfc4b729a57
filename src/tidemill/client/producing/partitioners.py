"""Which partition a record goes to, when the caller does not say.

Keys are placed as Java's default producer places them, so that Tidemill's tools and any Java
producer agree about where a key lives. librdkafka's default (crc32) is another one.
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
    """One after the other, whatever the key."""

    def __init__(self) -> None:
        self._next = 0

    def partition(self, key: bytes | None, partition_count: int) -> int:
        chosen = self._next % partition_count
        self._next = chosen + 1
        return chosen


@final
class RandomPartitioner:
    """Any of them, whatever the key."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def partition(self, key: bytes | None, partition_count: int) -> int:
        return self._rng.below(partition_count)


@final
class KeyPartitioner:
    """By the hash of the key; records without one go where `keyless` says."""

    def __init__(self, keyless: Partitioner) -> None:
        self._keyless = keyless

    def partition(self, key: bytes | None, partition_count: int) -> int:
        if key is None:
            return self._keyless.partition(key, partition_count)
        return partition_for(key, partition_count)
