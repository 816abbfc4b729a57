"""Partitions that the metadata image gives this broker and whose log is not there yet.

    wanted --take--> in the making --tried--> (opened, and no longer here)
       ^                                |
       +------- retry_failed ------- failed

A partition is here with the newest image of its topic, whatever state it is in: while its log is
being made, the topic may change, go, or come again as another one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import final

from tidemill.core.ids import TopicPartition
from tidemill.metadata.image.metadata_image import TopicImage

__all__ = ["PendingLogs"]


@final
class PendingLogs:
    """The queue of logs to be made, and those who wait for them."""

    def __init__(self) -> None:
        self._topics: dict[TopicPartition, TopicImage] = {}
        """Everything that is here; no larger than the image."""
        self._wanted: dict[TopicPartition, None] = {}
        self._making: set[TopicPartition] = set()
        self._untried: Counter[str] = Counter()
        """Partitions by topic that are wanted or in the making."""
        self._work_came = asyncio.Event()
        self._group_ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._topics)

    def topic(self, name: TopicPartition) -> TopicImage | None:
        """What the image says of this partition's topic now; None if it is not wanted any more."""
        return self._topics.get(name)

    # --- coming and going ------------------------------------------------------------------------

    def want(self, name: TopicPartition, topic: TopicImage) -> None:
        """The image has this partition for us; one that failed waits for its next attempt."""
        before = self._topics.get(name)
        self._topics[name] = topic
        if before is None or before.topic_id != topic.topic_id:
            self._queue(name)

    def forget(self, name: TopicPartition) -> None:
        """It is not ours any more, or it is there now."""
        self._topics.pop(name, None)
        if name in self._wanted:
            del self._wanted[name]
            self._leave(name)

    def take(self, count: int) -> list[tuple[TopicPartition, TopicImage]]:
        """Up to so many of those that wait, longest first; `tried` has to follow."""
        names = list(islice(self._wanted, count))
        for name in names:
            del self._wanted[name]
        self._making.update(names)
        return [(name, self._topics[name]) for name in names]

    def tried(self, group: Sequence[tuple[TopicPartition, TopicImage]]) -> None:
        """These were opened, or failed. What became another topic's meanwhile waits again."""
        for name, topic in group:
            self._making.discard(name)
            self._leave(name)
            now = self._topics.get(name)
            if now is not None and now.topic_id != topic.topic_id:
                self._queue(name)
        ended, self._group_ended = self._group_ended, asyncio.Event()
        ended.set()

    def retry_failed(self) -> None:
        """Let everything wait again that was tried and is not there."""
        for name in self._topics:
            self._queue(name)

    def _queue(self, name: TopicPartition) -> None:
        if name not in self._wanted and name not in self._making:
            self._wanted[name] = None
            self._untried[name.topic] += 1
            self._work_came.set()

    def _leave(self, name: TopicPartition) -> None:
        self._untried[name.topic] -= 1
        if not self._untried[name.topic]:
            del self._untried[name.topic]

    # --- waiting ---------------------------------------------------------------------------------

    def has_untried(self, topic: str) -> bool:
        """Whether a log of this topic is still to be made, or being made."""
        return topic in self._untried

    async def wait_tried(self, topics: Iterable[str]) -> None:
        """Wait until each log of these topics is there, or could not be made at once."""
        for topic in topics:
            while topic in self._untried:
                await self._group_ended.wait()

    def wake(self) -> None:
        """There is other work for whoever waits for logs to make."""
        self._work_came.set()

    async def wait_work(self, timeout_s: float) -> None:
        """Wait until something is wanted, but no longer than this."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._work_came.wait()
        except TimeoutError:
            pass
        self._work_came.clear()
