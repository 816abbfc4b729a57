"""Drops old data: a walk over all logs of a directory, a few at a time.

Eight thousand logs are too many for one turn of the event loop. A pass takes them in slices, starts
again after the last one, and finds logs that were created or deleted meanwhile in its next round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from tidemill.core.ids import TopicPartition
from tidemill.storage.directory.log_directory import LogDirectory

__all__ = ["RetentionPass"]


@final
class RetentionPass:
    """Applies retention to every log of one directory, slice by slice."""

    def __init__(
        self, directory: LogDirectory, high_watermark_of: Callable[[TopicPartition], int]
    ) -> None:
        self._directory = directory
        self._high_watermark_of = high_watermark_of
        self._left: deque[TopicPartition] = deque()
        self.segments_dropped = 0

    def run_slice(self, now_ms: int, budget: int) -> bool:
        """Look at up to `budget` logs; True if this slice completed a pass over all of them."""
        if not self._left:
            self._left.extend(self._directory.logs())
        for _ in range(min(budget, len(self._left))):
            self._apply(self._left.popleft(), now_ms)
        return not self._left

    def _apply(self, partition: TopicPartition, now_ms: int) -> None:
        if self._directory.get(partition) is not None:
            high_watermark = self._high_watermark_of(partition)
            self.segments_dropped += self._directory.apply_retention(
                partition, now_ms=now_ms, high_watermark=high_watermark
            )
