"""Short reads of a log's end, kept for the next follower that wants the same. Pure.

HOT PATH: once per partition that a follower is told records of.

Followers that keep up are told of an append in the same turn, from the same offset. The end of a
log is read into memory, as it is not mapped yet, and the second follower gets the same bytes. Long
reads are views of mapped segments, which cost nothing to repeat.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from tidemill.core.limits import KIB
from tidemill.replication.partition import Partition
from tidemill.storage.log.interface import LogSlice

__all__ = ["SharedReads"]

READ_BYTES_MAX: Final = 32 * KIB
"""Larger ones are not kept."""
READS_MAX: Final = 64
"""Kept at once: two megabytes."""

_Key = tuple[int, int, int, int]
"""Leader epoch, offset, end of the log, and the most that was asked for: the same bytes."""


@final
class SharedReads:
    """The last short read of each of the partitions that were read last."""

    def __init__(self, *, reads_max: int = READS_MAX, read_bytes_max: int = READ_BYTES_MAX) -> None:
        self._reads_max = reads_max
        self._read_bytes_max = read_bytes_max
        self._kept: OrderedDict[Partition, tuple[_Key, LogSlice]] = OrderedDict()

    def read(
        self, partition: Partition, offset: int, *, max_bytes: int, at_least_one: bool
    ) -> LogSlice:
        """Whole batches from `offset` to the end of the log; otherwise like `Partition.read`."""
        end_offset = partition.log.log_end_offset
        key = (partition.leader_epoch, offset, end_offset, max_bytes)
        kept = self._kept.get(partition)
        if kept is not None and kept[0] == key:
            return kept[1]
        found = partition.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one
        )
        if found.load is None and 0 < found.size_bytes < self._read_bytes_max:
            self._kept.pop(partition, None)
            self._kept[partition] = (key, found)
            if len(self._kept) > self._reads_max:
                self._kept.popitem(last=False)
        return found
