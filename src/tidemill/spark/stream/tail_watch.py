"""Waits for records beyond those that were read: a Fetch parked at the ends of the partitions.

The Fetch outlives the call that sent it, so that an idle query makes one request a second. Its
answer may therefore be older than the call that gets it: an empty one only says that nothing had
come when it was sent. The wait goes on with a new Fetch, which asks about now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol, final

from tidemill.client.consuming.consumer import FetchedBatches
from tidemill.core.clock import Clock
from tidemill.core.ids import TopicPartition

__all__ = ["TailWatch"]


class TailConsumer(Protocol):
    """The part of `Consumer` that a watch needs."""

    positions: dict[TopicPartition, int]

    async def poll_batches(self, timeout_s: float) -> list[FetchedBatches]: ...


@final
class TailWatch:
    """Watches the ends of the partitions of one query."""

    def __init__(self, consumer: TailConsumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock

    async def wait(
        self, positions: Mapping[TopicPartition, int], timeout_s: float
    ) -> list[FetchedBatches]:
        """Some of the batches from `positions` on; none if none came in time.

        Raises KafkaError if a leader refuses.
        """
        if not positions:
            await asyncio.sleep(timeout_s)
            return []
        self._consumer.positions = dict(positions)
        deadline = self._clock.monotonic() + timeout_s
        while True:
            left_s = deadline - self._clock.monotonic()
            fetched = await self._consumer.poll_batches(max(0.0, left_s))
            if fetched or left_s <= 0:
                return fetched
