"""Forgets producers that have been silent for `producer.id.expiration.ms`, a few at a time.

A log may have ten thousand of them and a directory thousands of logs, so a pass takes both in
slices. Nothing is written: snapshots carry the time of each producer's last append, and a start
drops those that have expired by then.
"""

from __future__ import annotations

from collections import deque
from typing import final

from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.partition_log import FilePartitionLog

__all__ = ["ProducerExpiry"]


@final
class ProducerExpiry:
    """Expires the producers of every log of one directory, slice by slice."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._left: deque[FilePartitionLog] = deque()
        self.producers_forgotten = 0

    def run_slice(self, now_ms: int, *, logs_max: int, entries_max: int) -> bool:
        """Forget up to `entries_max` producers; True if this slice completed a pass."""
        if not self._left:
            self._left.extend(self._directory.logs().values())
        expiration_ms = self._directory.producer_expiration_ms
        for _ in range(min(logs_max, len(self._left))):
            producers = self._left[0].producers
            forgotten = producers.expire(now_ms, expiration_ms, entries_max=entries_max)
            self.producers_forgotten += forgotten
            entries_max -= forgotten
            if entries_max <= 0:
                return False
            self._left.popleft()
        return not self._left
