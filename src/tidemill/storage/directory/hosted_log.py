"""One log that a data directory serves, and what the directory promises about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.core.ids import TopicId
from tidemill.storage.directory.checkpoint import CheckpointEntry
from tidemill.storage.directory.flush_round import FlushRound
from tidemill.storage.log.partition_log import FilePartitionLog

__all__ = ["HostedLog", "droppable_end"]


@final
@dataclass(slots=True)
class HostedLog:
    """One log and what the directory knows about it."""

    log: FilePartitionLog
    topic_id: TopicId
    path: str
    high_watermark: int
    """As last written to a checkpoint, or read from one."""

    def checkpointed(self) -> CheckpointEntry:
        """What a checkpoint may promise now."""
        log = self.log
        # The files of a log that is being cut hold something else: nothing is promised.
        start = 0 if log.is_being_cut else log.log_start_offset
        return CheckpointEntry(
            self.topic_id,
            0 if log.is_being_cut else max(log.progress.synced_offset, start),
            start,
            self.high_watermark,
            log.size_bytes,
            log.producers.fact_count,
        )


def droppable_end(log: FilePartitionLog, running: FlushRound | None) -> int:
    """No segment that ends after this offset may be dropped yet, while this round is running.

    A segment is dropped only when everything that must outlive it is on disk: the name of the
    segment after it, and the producers that only it knew. For closed segments a flush after the
    last roll has stored these, unless the disk was full, for the last segment a checkpoint;
    until then they stay.
    """
    if log.progress.is_stored and (running is None or not running.covers(log)):
        return log.flushed_offset
    return log.progress.stored_closed_end
