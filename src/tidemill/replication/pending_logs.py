"""Partitions that the metadata image assigns to this broker and whose log is not open yet.

    wanted --take--> being made --tried--> (opened, and removed from here)
       ^                              |
       +------ retry_failed ------ failed

Each partition is kept with the newest image of its topic: while its log is being made, the topic
may change, be deleted, or be created again under the same name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import final

from tidemill.core.ids import TopicPartition
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.replication.refused_batches import EarlyRefusals

__all__ = ["PendingLogs"]


@final
class PendingLogs:
    """The queue of logs to be made; requests wait here for the logs of their topic."""

    def __init__(self) -> None:
        self._topics: dict[TopicPartition, TopicImage] = {}
        """Every pending partition, in any state; no larger than the image."""
        self._wanted: dict[TopicPartition, None] = {}
        self._making: set[TopicPartition] = set()
        self._untried: Counter[str] = Counter()
        """How many partitions of each topic are wanted or being made."""
        self._work_came = asyncio.Event()
        self._group_ended = asyncio.Event()
        self.refusals = EarlyRefusals()
        """Batches that came too early, also for topics that this broker has not heard of."""

    def __len__(self) -> int:
        return len(self._topics)

    def topic(self, name: TopicPartition) -> TopicImage | None:
        """The newest image of this partition's topic; None if the partition is not pending."""
        return self._topics.get(name)

    # --- the queue -------------------------------------------------------------------------------

    def want(self, name: TopicPartition, topic: TopicImage) -> None:
        """The image assigns this partition to us. One that failed waits for `retry_failed`."""
        before = self._topics.get(name)
        self._topics[name] = topic
        if before is None or before.topic_id != topic.topic_id:
            self._queue(name)
            self._work_came.set()

    def forget(self, name: TopicPartition) -> None:
        """The partition is open now, or no longer ours."""
        self._topics.pop(name, None)
        if name in self._wanted:
            del self._wanted[name]
            self._leave(name)

    def take(self, count: int) -> list[tuple[TopicPartition, TopicImage]]:
        """Take up to `count` partitions, the longest waiting first; the caller reports `tried`."""
        names = list(islice(self._wanted, count))
        for name in names:
            del self._wanted[name]
        self._making.update(names)
        return [(name, self._topics[name]) for name in names]

    def tried(self, group: Sequence[tuple[TopicPartition, TopicImage]]) -> None:
        """These were opened, or failed. A name that another topic has by now is queued again."""
        for name, topic in group:
            self._making.discard(name)
            self._leave(name)
            now = self._topics.get(name)
            if now is not None and now.topic_id != topic.topic_id:
                self._queue(name)
                self._work_came.set()
        ended, self._group_ended = self._group_ended, asyncio.Event()
        ended.set()

    def retry_failed(self) -> None:
        """Queue every partition again that was tried and is not open, for the caller to take.

        It wakes nobody: on a full disk the next `wait_work` would not wait, and all would be tried
        again without a pause.
        """
        for name in self._topics:
            self._queue(name)

    def _queue(self, name: TopicPartition) -> None:
        if name not in self._wanted and name not in self._making:
            self._wanted[name] = None
            self._untried[name.topic] += 1

    def _leave(self, name: TopicPartition) -> None:
        self._untried[name.topic] -= 1
        if not self._untried[name.topic]:
            del self._untried[name.topic]

    # --- waiting ---------------------------------------------------------------------------------

    def has_untried(self, topic: str) -> bool:
        """Whether a log of this topic is wanted or being made."""
        return topic in self._untried

    async def wait_tried(self, topics: Iterable[str]) -> None:
        """Wait until each log of these topics is open or its first attempt has failed."""
        for topic in topics:
            while topic in self._untried:
                await self._group_ended.wait()

    def wake(self) -> None:
        """Wake `wait_work` for other work: deleted logs wait to be removed."""
        self._work_came.set()

    async def wait_work(self, timeout_s: float) -> None:
        """Wait until there is work, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._work_came.wait()
        except TimeoutError:
            pass
        self._work_came.clear()
