"""Makes the logs of new partitions, group by group, and finishes the removal of deleted ones.

The logs of a group are made in a thread with a handful of syncs
(`storage/directory/log_creation.py`). Then the partitions take on their roles on the event loop, a
few per turn. Until then requests for them are refused with a code that clients retry. A log that
cannot be made is tried again: a topic that was deleted and created again has to wait until a flush
of its old log ends.

A log that a start did not find, though this broker had it, is made anew, too, and announced: what
was in it is lost unless another broker has a replica.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from tidemill.core.errors import DiskBusy, KafkaError, StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.core.logs import listed
from tidemill.core.loop.pacing import next_turn
from tidemill.metadata.image.metadata_image import (
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicImage,
)
from tidemill.replication.replica_manager import ReplicaManager, log_config_of
from tidemill.storage.directory.log_creation import LogCreation, WantedLog
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.disk_work import DiskWork

__all__ = ["LogOpener"]

log = logging.getLogger(__name__)

LOGS_PER_GROUP = 64
PARTITIONS_PER_SLICE = 10
"""Partitions that take on their roles in one turn of the loop: about a millisecond."""
RETRY_INTERVAL_S = 0.5
IDLE_S = 3600.0

_LOST_STATE: Final = {
    OFFSETS_TOPIC: "its groups have no committed offsets, and their readers begin where "
    "auto.offset.reset says",
    TRANSACTION_STATE_TOPIC: "nobody ends the transactions that were open, and readers of "
    "committed records wait for them: see `tidemill transaction list --hanging`",
}
_Group = Sequence[tuple[TopicPartition, TopicImage]]


@final
class LogOpener:
    """The loop that makes the pending logs of one data directory."""

    def __init__(
        self,
        disk: Disk,
        directory: LogDirectory,
        replicas: ReplicaManager,
        *,
        log_changes: asyncio.Lock,
        settled: Callable[[], None],
    ) -> None:
        """`settled` hears of removals that are durable: the files may go."""
        self._disk = disk
        self._directory = directory
        self._replicas = replicas
        self._log_changes = log_changes
        self._settled = settled
        self._pending = replicas.pending_logs
        self._reported: dict[TopicPartition, TopicImage] = {}
        """Failures that have been logged, with the image of the topic at that time."""
        self._reported_removal = ""
        """The last failure of removals, if it was logged and nothing was removed since."""

    async def run(self) -> None:
        """Make pending logs, forever."""
        while True:
            await self._pending.wait_work(RETRY_INTERVAL_S if len(self._pending) else IDLE_S)
            await self.open_pending()

    async def open_pending(self) -> None:
        """Try to make every pending log, and finish removals."""
        await self._settle_removals()
        self._pending.retry_failed()
        while group := self._pending.take(LOGS_PER_GROUP):
            await self.open_group(group)

    async def open_group(self, group: _Group) -> None:
        """Make the logs of one group and serve their partitions."""
        self._directory.free_names(name for name, _ in group)
        await self._settle_removals()
        creation = self._directory.begin_creation(
            WantedLog(name, topic.topic_id, log_config_of(topic.config)) for name, topic in group
        )
        try:
            await self._disk.run(creation.make)
            self._directory.adopt(creation)
        except (KafkaError, DiskBusy) as error:
            rest = [name for name, _ in group if name not in creation.failed]
            creation.failed.update(dict.fromkeys(rest, error))
        self._note_failures(group, creation)
        made = [name for name, _ in group if name not in creation.failed]
        self._announce_lost({name: topic for name, topic in group if name not in creation.failed})
        for start in range(0, len(made), PARTITIONS_PER_SLICE):
            self._replicas.open_made(made[start : start + PARTITIONS_PER_SLICE])
            await next_turn()
        self._pending.tried(group)

    def _note_failures(self, group: _Group, creation: LogCreation) -> None:
        """Log a failure once per image of the topic, however often it is retried."""
        for name, topic in group:
            error = creation.failed.get(name)
            if error is None:
                self._reported.pop(name, None)
            elif self._reported.get(name) is not topic:
                self._reported[name] = topic
                log.error("partition %s cannot be opened: %s", name, error)

    def _announce_lost(self, made: Mapping[TopicPartition, TopicImage]) -> None:
        """Say which of these logs have replaced others, whose directories are gone."""
        lost: list[str] = []
        for name, topic in made.items():
            entry = self._directory.lost.try_take(name, topic.topic_id)
            if entry is not None:
                lost.append(
                    f"{name} ({entry.size_bytes} bytes up to offset {entry.recovery_point})"
                )
                if name.topic in _LOST_STATE:
                    log.error("%s is lost with its directory: %s", name, _LOST_STATE[name.topic])
        if lost:
            log.error(
                "the directories of %d logs are gone from %s, empty logs take their place; other "
                "replicas fill them, and what has none is lost: if there is a copy of a directory, "
                "stop this broker now and put it back: %s",
                len(lost),
                self._directory.path,
                listed(lost),
            )

    async def _settle_removals(self) -> None:
        if not self._directory.has_unsettled_removals:
            return
        try:
            async with self._log_changes:
                await self._disk.run(self._directory.settle_removals, DiskWork.BACKGROUND)
        except StorageFault as fault:
            if str(fault) != self._reported_removal:
                self._reported_removal = str(fault)
                log.error("removing deleted logs failed: %s", fault)
        else:
            self._reported_removal = ""
        self._settled()
