"""Logs that a start could not load: not served, not replaced, and not forgotten.

The files may hold records, so no empty log takes their place while their topic exists. They go when
their topic is known to be gone: it was deleted while the broker ran, or another topic has the name
now.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.storage.directory.checkpoint import CheckpointEntry

__all__ = ["UnloadedLogs"]


@final
@dataclass(frozen=True, slots=True)
class _UnloadedLog:
    why: str
    topic_id: TopicId | None
    """None if neither the files nor the checkpoint say whose log it is."""
    entry: CheckpointEntry | None
    """What the last checkpoint says about it."""


@final
class UnloadedLogs:
    """The logs of one data directory that could not be loaded; no more than it has."""

    def __init__(self) -> None:
        self._logs: dict[TopicPartition, _UnloadedLog] = {}

    def add(
        self,
        partition: TopicPartition,
        why: str,
        *,
        topic_id: TopicId | None,
        entry: CheckpointEntry | None,
    ) -> None:
        self._logs[partition] = _UnloadedLog(why, topic_id, entry)

    def names(self) -> Set[TopicPartition]:
        return self._logs.keys()

    def entries(self) -> dict[TopicPartition, CheckpointEntry]:
        """For the next checkpoint: a start that can load the log needs them."""
        return {name: log.entry for name, log in self._logs.items() if log.entry is not None}

    def topic_ids(self) -> dict[TopicPartition, TopicId]:
        """The topics of the logs whose topic is known."""
        return {name: log.topic_id for name, log in self._logs.items() if log.topic_id is not None}

    def check_replaceable(self, partition: TopicPartition, topic_id: TopicId) -> None:
        """KafkaError if the unloaded log under this name is, or may be, a log of this topic."""
        log = self._logs.get(partition)
        if log is not None and log.topic_id in (None, topic_id):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} was not loaded: {log.why}"
            )

    def forget(self, partition: TopicPartition) -> None:
        """A log of another topic takes the name; its creation puts these files aside."""
        self._logs.pop(partition, None)

    def try_release(self, partition: TopicPartition, topic_id: TopicId) -> bool:
        """The topic was deleted: whether there was a log of it, which the caller may remove now."""
        log = self._logs.get(partition)
        if log is None or log.topic_id not in (None, topic_id):
            return False
        del self._logs[partition]
        return True
