"""The size of a range of offsets, and the time of its first record, as fetches have shown them.

A sample of the first batches of a range measures it. Sampling costs a request, so a range that is
small by the running estimate of its partition is not sampled; every fetch that the driver makes
moves that estimate. Sizes are those of the log, that is, possibly compressed.

Written parts of a log do not change, so a range that was sampled gets the same estimate again: a
batch that Spark plans again after a crash is cut in the same way, unless it is small.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from tidemill.client.consuming.consumer import Consumer, FetchedBatches
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import KIB, MIB

__all__ = ["LogSizes"]

_SMALL_BYTES: Final = 1 * MIB
"""Ranges that together are no larger than this by the running estimates are not sampled."""
_GUESSED_BYTES: Final = 1 * KIB
"""The assumed size of an offset if no partition gave a sample."""
_SAMPLE_BYTES: Final = 64 * KIB
_POLLS_MAX: Final = 20
_POLL_S: Final = 0.5


@final
@dataclass(frozen=True, slots=True)
class _Sample:
    """The first batches from an offset on."""

    offset: int
    bytes_per_offset: float
    time_ms: int
    """-1 if the records have no time."""


@final
class LogSizes:
    """Bytes per offset, for each partition that the query has read."""

    def __init__(self) -> None:
        self._running: dict[TopicPartition, float] = {}
        """Moves halfway to each new measurement."""
        self._samples: dict[TopicPartition, _Sample] = {}
        """The last one of each partition."""

    def observe(self, fetched: FetchedBatches) -> None:
        """Learn from batches that were fetched for any purpose."""
        first, last = fetched.batches[0][1], fetched.batches[-1][1]
        size_bytes = sum(len(view) for view, _ in fetched.batches)
        per_offset = size_bytes / max(1, last.next_offset - first.base_offset)
        before = self._running.get(fetched.partition, per_offset)
        self._running[fetched.partition] = (before + per_offset) / 2
        # A batch that the broker stamped has that time in `max_timestamp` only.
        is_append_time = first.timestamp_type == "append"
        time_ms = first.max_timestamp if is_append_time else first.base_timestamp
        self._samples[fetched.partition] = _Sample(fetched.from_offset, per_offset, time_ms)

    async def estimate(
        self, cluster: ClusterClient, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, int]:
        """The size of each range; samples what is unknown and may be large."""
        starts = self.to_sample(ranges)
        if starts:
            # A range outside the log is reported by the task.
            with contextlib.suppress(KafkaError):
                await self._sample(cluster, starts)
        return {p: self._size(p, start, stop) for p, (start, stop) in ranges.items()}

    async def head_times(
        self, cluster: ClusterClient, starts: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The time of the first record from each start on, in ms, where one was found."""
        unknown = {p: start for p, start in starts.items() if not self._is_measured(p, start)}
        if unknown:
            with contextlib.suppress(KafkaError):
                await self._sample(cluster, unknown)
        known = [p for p, start in starts.items() if self._is_measured(p, start)]
        return {p: self._samples[p].time_ms for p in known}

    def to_sample(
        self, ranges: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, int]:
        """The partitions that need a sample, and the offsets at which to take it."""
        if ranges.keys() <= self._running.keys():
            total = sum(self._size(p, start, stop) for p, (start, stop) in ranges.items())
            if total <= _SMALL_BYTES:
                return {}
        return {p: start for p, (start, _) in ranges.items() if not self._is_measured(p, start)}

    def _is_measured(self, partition: TopicPartition, offset: int) -> bool:
        return partition in self._samples and self._samples[partition].offset == offset

    def _size(self, partition: TopicPartition, start: int, stop: int) -> int:
        if self._is_measured(partition, start):
            per_offset = self._samples[partition].bytes_per_offset
        elif partition in self._running:
            per_offset = self._running[partition]
        else:
            per_offset = self._mean_bytes()
        return int((stop - start) * per_offset)

    def _mean_bytes(self) -> float:
        """Of an offset in the partitions that are known: others of the query are probably alike."""
        return sum(self._running.values()) / len(self._running) if self._running else _GUESSED_BYTES

    async def _sample(self, cluster: ClusterClient, starts: Mapping[TopicPartition, int]) -> None:
        """Fetch the first batches from each start on."""
        consumer = Consumer(
            cluster,
            fetch_bytes_max=_SAMPLE_BYTES * len(starts),
            partition_bytes_max=_SAMPLE_BYTES,
            retry_s=_POLL_S,
        )
        consumer.read_between({partition: (at, at + 1) for partition, at in starts.items()})
        for _ in range(_POLLS_MAX):
            if not consumer.positions:
                break
            for fetched in await consumer.poll_batches(_POLL_S):
                self.observe(fetched)
