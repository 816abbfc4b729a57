"""Divides what a batch reads into tasks. Pure: the same ranges give the same tasks.

A Python task has an overhead of about 25 ms, so many short ranges share one task; a long range is
cut so that cores share it. Both decisions use estimated bytes (`log_sizes`). `minPartitions` and
`maxRecordsPerPartition` cut further, by offsets, as in Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB

__all__ = ["OffsetRange", "plan_tasks"]

TASK_BYTES_MAX: Final = 64 * MIB
"""A longer range is cut."""
TASK_BYTES_MIN: Final = 4 * MIB
"""Shorter ranges share a task up to this total."""


@final
@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `start` to `stop` - 1 of one partition.

    `topic_id` tells topics apart that have had the same name. `size_bytes` is an estimate.
    """

    partition: TopicPartition
    start: int
    stop: int
    topic_id: str | None = None
    size_bytes: int = 0

    @property
    def offset_count(self) -> int:
        return self.stop - self.start

    def cut(self, pieces: int) -> Iterator[OffsetRange]:
        """Consecutive parts of equal length; at most one for each offset."""
        pieces = max(1, min(pieces, self.offset_count))
        edges = [self.start + self.offset_count * i // pieces for i in range(pieces + 1)]
        for start, stop in pairwise(edges):
            size_bytes = self.size_bytes * (stop - start) // max(1, self.offset_count)
            yield OffsetRange(self.partition, start, stop, self.topic_id, size_bytes)


def plan_tasks(
    ranges: Iterable[OffsetRange],
    *,
    partitions_min: int | None = None,
    partition_records_max: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task; empty ranges are left out."""
    wanted = sorted(
        (piece for piece in ranges if piece.offset_count > 0), key=lambda piece: piece.partition
    )
    if partition_records_max is not None:
        wanted = [
            part
            for piece in wanted
            for part in piece.cut(-(-piece.offset_count // partition_records_max))
        ]
    if partitions_min is not None and len(wanted) < partitions_min:
        wanted = _cut_into(wanted, partitions_min)
    wanted = [
        part for piece in wanted for part in piece.cut(-(-piece.size_bytes // TASK_BYTES_MAX))
    ]
    if partitions_min is not None or partition_records_max is not None:
        return [(piece,) for piece in wanted]
    return list(_packed(wanted))


def _cut_into(wanted: Sequence[OffsetRange], count: int) -> list[OffsetRange]:
    """About `count` parts: each range is cut in proportion to its offsets."""
    total = sum(piece.offset_count for piece in wanted)
    return [
        part
        for piece in wanted
        for part in piece.cut(max(1, round(count * piece.offset_count / total)))
    ]


def _packed(wanted: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, ...]]:
    task: list[OffsetRange] = []
    size_bytes = 0
    for piece in wanted:
        if task and size_bytes + piece.size_bytes > TASK_BYTES_MIN:
            yield tuple(task)
            task, size_bytes = [], 0
        task.append(piece)
        size_bytes += piece.size_bytes
    if task:
        yield tuple(task)
