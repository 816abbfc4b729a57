"""Decides how far the next batch of a stream goes. Pure: numbers in, numbers out.

`maxOffsetsPerTrigger` and `maxBytesPerTrigger` are divided among the partitions in proportion to
what each has waiting, so that none starves and all finish at about the same time. With
`alignTimestamps` the times of records decide: `stream.time_admission`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from tidemill.core.ids import TopicPartition
from tidemill.spark.options.offset_json import PartitionOffsets

__all__ = ["TriggerLimits", "admit", "waiting_offsets"]


@final
@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """Limits of one batch; None is no limit."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    delay_max_ms: int = 0


def waiting_offsets(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> int:
    """Offsets that are not read yet, over all partitions."""
    return sum(max(0, end - starts[partition]) for partition, end in ends.items())


def admit(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    limits: TriggerLimits,
    sizes: Mapping[TopicPartition, int] | None = None,
) -> PartitionOffsets:
    """Where the batch ends in each partition: at `ends`, or earlier if a limit applies.

    `sizes` are the bytes waiting in each partition; `bytes_max` needs them.
    """
    waiting = {partition: max(0, end - starts[partition]) for partition, end in ends.items()}
    share = 1.0
    total = sum(waiting.values())
    if limits.offsets_max is not None and total > limits.offsets_max:
        share = limits.offsets_max / total
    if limits.bytes_max is not None and sizes is not None:
        total_bytes = sum(sizes.get(partition, 0) for partition in waiting)
        if total_bytes > limits.bytes_max:
            share = min(share, limits.bytes_max / total_bytes)
    if share >= 1.0:
        return {p: max(starts[p], end) for p, end in ends.items()}
    return _shared_out(starts, waiting, share)


def _shared_out(
    starts: Mapping[TopicPartition, int], waiting: PartitionOffsets, share: float
) -> PartitionOffsets:
    """Each partition gets its share, rounded down; the rest goes to the largest fractions."""
    exact = {partition: count * share for partition, count in waiting.items()}
    given = {partition: int(count) for partition, count in exact.items()}
    left = max(1, int(sum(exact.values()))) - sum(given.values())
    by_fraction = sorted(exact, key=lambda p: (given[p] - exact[p], p))
    for partition in by_fraction:
        if left <= 0:
            break
        if given[partition] < waiting[partition]:
            given[partition] += 1
            left -= 1
    return {partition: starts[partition] + count for partition, count in given.items()}
