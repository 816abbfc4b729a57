"""Which part of a compacted log is worth cleaning, and how urgently.

Only closed segments below the given offset count, and with `min.compaction.lag.ms` only those whose
records are all old enough. A log is due when the share of bytes after its clean point is at least
`min.cleanable.dirty.ratio`, or when its first dirty segment is older than `max.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tidemill.storage.log.interface import FOREVER
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment
from tidemill.wire.batch import NO_TIMESTAMP

__all__ = ["Cleanable", "try_find_cleanable"]


@final
@dataclass(slots=True)
class Cleanable:
    """One log with dirty segments."""

    log: FilePartitionLog
    segments: Sequence[Segment]
    dirty_ratio: float
    is_due: bool


def try_find_cleanable(log: FilePartitionLog, end_offset: int, *, now_ms: int) -> Cleanable | None:
    """What can be cleaned below `end_offset`; None if nothing. May wait for the disk."""
    segments = _old_enough(log, log.compactable_segments(end_offset), now_ms)
    point = log.clean_point.offset
    dirty = [segment for segment in segments if segment.next_offset > point]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    if not dirty_bytes:
        return None
    ratio = dirty_bytes / sum(segment.size_bytes for segment in segments)
    is_due = ratio >= log.config.min_cleanable_dirty_ratio or _has_waited(log, dirty[0], now_ms)
    return Cleanable(log, segments, ratio, is_due)


def _old_enough(
    log: FilePartitionLog, segments: Sequence[Segment], now_ms: int
) -> Sequence[Segment]:
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms:
        for place, segment in enumerate(segments):
            if segment.newest_ms(now_ms) > now_ms - lag_ms:
                return segments[:place]
    return segments


def _has_waited(log: FilePartitionLog, first_dirty: Segment, now_ms: int) -> bool:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms == FOREVER:
        return False
    timestamp = first_dirty.first_timestamp()
    since = first_dirty.newest_ms(now_ms) if timestamp == NO_TIMESTAMP else timestamp
    return now_ms - since > lag_ms
