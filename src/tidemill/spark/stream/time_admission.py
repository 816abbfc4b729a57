"""Ends a batch at about the same time in all partitions. Pure: the caller asks the brokers.

Spark has one watermark for all partitions of a query: if a batch reads one partition an hour
further than another, the rows that the other still has are late, and windows leave them out. So a
batch that a limit cuts short ends at the latest time up to which the records of all partitions are
within the limit. That time is found by asking for the offsets of some times: steps that double,
then halves. What is left of the limit, within the last step, is shared as in `admission`.

Record timestamps decide. A partition whose first record has none, or one in the future, is admitted
by its share: waiting for its time could take for ever.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Final, final

from tidemill.core.ids import TopicPartition
from tidemill.spark.options.offset_json import PartitionOffsets
from tidemill.spark.source.admission import TriggerLimits, admit, waiting_offsets

__all__ = ["TIME_STEP_MS", "OffsetsOfTimes", "admit_by_time"]

TIME_STEP_MS: Final = 5_000
"""Partitions that are no further apart than this count as equally far."""
_TIMES_MAX: Final = 40
"""Times that one batch asks for. Doubled steps reach 50 years in 29; halves find hours in 10."""

OffsetsOfTimes = Generator[int, Mapping[TopicPartition, int], PartitionOffsets]
"""Yields times in ms; gets the first offset of that time or later in each partition, or its end."""


def admit_by_time(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    limits: TriggerLimits,
    sizes: Mapping[TopicPartition, int],
    *,
    heads_ms: Mapping[TopicPartition, int],
    now_ms: int,
) -> OffsetsOfTimes:
    """Where the batch ends in each partition; `heads_ms` are the times of the first records.

    `sizes` are the bytes waiting in each partition, 0 if nobody asks for them.
    """
    shared = admit(starts, ends, limits, sizes)
    timed = {p for p, head in heads_ms.items() if 0 <= head <= now_ms and starts[p] < ends[p]}
    if len(timed) < 2 or all(shared[p] == ends[p] for p in timed):
        return shared
    low = {p: starts[p] if p in timed else shared[p] for p in ends}
    high = {p: ends[p] if p in timed else shared[p] for p in ends}
    search = _TimeSearch(min(heads_ms[p] for p in timed), now_ms)
    while (time_ms := search.next_ms()) is not None:
        offsets = yield time_ms
        found = {p: min(max(offsets.get(p, 0), low[p]), high[p]) for p in ends}
        fits = admit(starts, found, limits, _part(sizes, starts, ends, starts, found)) == found
        search.tell(time_ms, fits=fits)
        low, high = (found, high) if fits else (low, found)
    left = _left(limits, waiting_offsets(starts, low), _part(sizes, starts, ends, starts, low))
    return low if left is None else admit(low, high, left, _part(sizes, starts, ends, low, high))


def _part(
    sizes: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    low: Mapping[TopicPartition, int],
    high: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The bytes from `low` to `high`, of the `sizes` from `starts` to `ends`."""
    return {
        p: size * (high[p] - low[p]) // max(1, ends[p] - starts[p]) for p, size in sizes.items()
    }


def _left(
    limits: TriggerLimits, offsets: int, sizes: Mapping[TopicPartition, int]
) -> TriggerLimits | None:
    """What is left of the limits; None if nothing is."""
    offsets_max, bytes_max = limits.offsets_max, limits.bytes_max
    if offsets_max is not None:
        offsets_max -= offsets
    if bytes_max is not None:
        bytes_max -= sum(sizes.values())
    if any(left is not None and left <= 0 for left in (offsets_max, bytes_max)):
        return None
    return replace(limits, offsets_max=offsets_max, bytes_max=bytes_max)


@final
class _TimeSearch:
    """Finds the latest time that fits: between one that does and one that does not."""

    def __init__(self, first_ms: int, last_ms: int) -> None:
        self._fits_ms = first_ms
        self._last_ms = last_ms
        self._over_ms: int | None = None
        self._step_ms = TIME_STEP_MS
        self._times_left = _TIMES_MAX

    def next_ms(self) -> int | None:
        """The time to ask for; None if the answers suffice."""
        if self._times_left == 0:
            return None
        if self._over_ms is not None:
            is_close = self._over_ms - self._fits_ms <= TIME_STEP_MS
            return None if is_close else (self._fits_ms + self._over_ms) // 2
        if self._fits_ms >= self._last_ms:
            return None
        return min(self._fits_ms + self._step_ms, self._last_ms)

    def tell(self, time_ms: int, *, fits: bool) -> None:
        self._times_left -= 1
        if fits:
            self._fits_ms = time_ms
            self._step_ms *= 2
        else:
            self._over_ms = time_ms
