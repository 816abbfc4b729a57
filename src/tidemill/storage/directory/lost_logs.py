"""Logs that the last checkpoint names and a start did not find: their directories are gone.

Nobody but an operator removes the directory of a log whose topic exists. There is nothing to serve
in its place but an empty log, so whoever makes that one has to say what it replaces. A topic that
was deleted just before a crash may be in the checkpoint as well: the topic id of what is made
tells the difference.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from tidemill.core.ids import TopicId, TopicPartition
from tidemill.storage.directory.checkpoint import Checkpoint, CheckpointEntry

__all__ = ["LostLogs"]


@final
class LostLogs:
    """The logs of one data directory that a start missed; no more than its checkpoint has."""

    def __init__(self, checkpoint: Checkpoint, found: Collection[TopicPartition]) -> None:
        self._entries = {
            name: entry for name, entry in checkpoint.entries.items() if name not in found
        }

    def __len__(self) -> int:
        return len(self._entries)

    def try_take(self, partition: TopicPartition, topic_id: TopicId) -> CheckpointEntry | None:
        """What the checkpoint says of the log that an empty one has replaced; only once."""
        entry = self._entries.pop(partition, None)
        return entry if entry is not None and entry.topic_id == topic_id else None
