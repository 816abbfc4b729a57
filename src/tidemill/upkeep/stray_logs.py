"""Removes the logs that this broker lost while it was down: deleted topics, replicas moved away.

A broker that runs hears of each deletion and each move. One that was down finds, at its next start,
logs that the cluster does not count as its own. Removing records is final, so a log goes only if
all of this holds, at the start and again an hour later:

- the image is complete: this broker is a member of the cluster, has read every change, and every
  stored topic could be read;
- no topic has the id that the log's own files name, or this broker is no replica of the partition;
  the name of the topic does not count (I34).

The hour is for people: a coordination store that was restored from an old backup lacks the newest
topics, and the log says at the start what is going to be removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import final
from uuid import UUID

from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.logs import listed
from tidemill.core.loop.pacing import next_turn
from tidemill.replication.pending_logs import PendingLogs
from tidemill.storage.directory.log_directory import LogDirectory

__all__ = ["REMOVAL_DELAY_S", "StrayLogs"]

log = logging.getLogger(__name__)

REMOVAL_DELAY_S = 3600.0
RETRY_INTERVAL_S = 60.0
"""How often an image that is not complete is looked at again."""
LOGS_PER_SLICE = 10
"""Their files are closed."""

_Strays = Mapping[TopicPartition, TopicId]


@final
class StrayLogs:
    """The logs of one data directory that belong to no partition of this broker."""

    def __init__(
        self,
        directory: LogDirectory,
        pending_logs: PendingLogs,
        own_logs: Callable[[], Collection[tuple[UUID, int]] | None],
    ) -> None:
        """`own_logs` has topic ids and partition numbers; None while the image may lack one."""
        self._directory = directory
        self._pending_logs = pending_logs
        self._own_logs = own_logs

    async def run(self) -> None:
        """Find the stray logs of this start, announce them, and remove them after the delay."""
        strays = await self._among(self._directory.topic_ids())
        # The image can take minutes to be whole; what was deleted or moved meanwhile is gone.
        present = self._directory.topic_ids()
        found = {name: one for name, one in strays.items() if present.get(name) == one}
        if not found:
            return
        log.error(
            "%d logs belong to no partition of this broker, as if topics were deleted or replicas "
            "moved while it was down; they will be removed in %d minutes: %s",
            len(found),
            REMOVAL_DELAY_S // 60,
            _shown(found),
        )
        await asyncio.sleep(REMOVAL_DELAY_S)
        await self._remove(found)

    async def _among(self, logs: _Strays) -> dict[TopicPartition, TopicId]:
        """Those of these logs that are not of this broker."""
        while (known := self._own_logs()) is None:  # noqa: ASYNC110 - rare, and not urgent
            await asyncio.sleep(RETRY_INTERVAL_S)
        return {
            name: topic_id
            for name, topic_id in logs.items()
            if (topic_id, name.partition) not in known
        }

    async def _remove(self, found: _Strays) -> None:
        removed: dict[TopicPartition, TopicId] = {}
        names = list(found)
        try:
            for start in range(0, len(names), LOGS_PER_SLICE):
                await next_turn()
                some = {name: found[name] for name in names[start : start + LOGS_PER_SLICE]}
                # Asked for each slice: a replica that has returned since then has the same log.
                removed |= self._remove_now(await self._among(some))
        except StorageFault as fault:
            log.error("removing stray logs failed: %s", fault)
        self._pending_logs.wake()
        log.warning(
            "removed %d logs of no partition of this broker: %s", len(removed), _shown(removed)
        )

    def _remove_now(self, strays: _Strays) -> dict[TopicPartition, TopicId]:
        """Without a turn of the loop since they were found to be strays; those that were there."""
        removed: dict[TopicPartition, TopicId] = {}
        for name, topic_id in strays.items():
            if self._directory.topic_id(name) == topic_id:
                self._directory.delete_log(name)
            elif not self._directory.delete_unloaded(name, topic_id):
                continue  # it went with its name, which another topic has now
            removed[name] = topic_id
        return removed


def _shown(strays: _Strays) -> str:
    return listed([f"{name} (topic id {topic_id})" for name, topic_id in strays.items()])
