"""Admits a backlog in the order of time: all partitions of a batch end at about the same timestamp.

Spark has one watermark for a query, the newest time that it has seen. If a batch takes the same
share of every partition's backlog, partitions that cover different hours are read at different
times, and the lines of the older ones come too late for their windows. So the batch ends at a time:
the latest one before which no more than the limit is waiting, found by bisection. The rest of the
limit is divided over the next second, so that a second with more records than the limit does not
stop the query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

from tidemill.core.ids import TopicPartition
from tidemill.spark.options.offset_json import PartitionOffsets
from tidemill.spark.source.admission import TriggerLimits, admit, waiting_offsets

__all__ = ["AlignedBatch", "OffsetsAt", "admit_by_time"]

OffsetsAt = Callable[[int], Awaitable[Mapping[TopicPartition, int]]]
"""For a time in ms, the first offset of each partition at or after it; -1 if there is none."""

_STEP_MS: Final = 1_000


@final
@dataclass(frozen=True, slots=True)
class AlignedBatch:
    """Where a batch ends, and a time before which nothing is left to read."""

    ends: PartitionOffsets
    time_ms: int


async def admit_by_time(
    offsets_at: OffsetsAt,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    offsets_max: int,
    times_ms: range,
) -> AlignedBatch:
    """End the batch between the two ends of `times_ms`; more than `offsets_max` must be waiting.

    Nothing before the first of these times may be waiting, or little.
    """
    low, high = dict(starts), dict(ends)
    low_ms, high_ms = times_ms.start, times_ms.stop
    while high_ms - low_ms > _STEP_MS:
        middle_ms = (low_ms + high_ms) // 2
        found = await offsets_at(middle_ms)
        middle = {
            p: min(end, max(starts[p], found[p])) if found[p] >= 0 else end
            for p, end in ends.items()
        }
        if waiting_offsets(starts, middle) <= offsets_max:
            low, low_ms = middle, middle_ms
        else:
            high, high_ms = middle, middle_ms
    left = offsets_max - waiting_offsets(starts, low)
    admitted = admit(low, high, TriggerLimits(offsets_max=left)) if left else low
    return AlignedBatch(admitted, low_ms)
