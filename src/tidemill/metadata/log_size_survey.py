"""Asks leaders how large their logs are, while the controller is about to plan moves.

A plan needs no exact sizes. So what was told counts for a while, and the plan does not wait for a
leader that is silent: its partitions count with the sizes that were told last. Otherwise a leader
that answers now and then would turn them from large to middle-sized and back, and they would move
for ever. Nobody is asked while there is nothing to plan.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import final

from tidemill.core.balancing.balance import Sizes
from tidemill.core.clock import Clock
from tidemill.core.errors import KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import LOG_SIZES_ASKED_MAX, LOG_SIZES_KEPT_S, LOG_SIZES_WAIT_S
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.metadata_image import MetadataImage

__all__ = ["AskLogSizes", "LogSizeSurvey"]

log = logging.getLogger(__name__)

AskLogSizes = Callable[[int, Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]
"""Asks one broker for the sizes of some logs; those that it has told. KafkaError: none."""

PARTITIONS_PER_SLICE = 250


@final
class LogSizeSurvey:
    """The sizes that were told last, and the next round of questions."""

    def __init__(self, image: Callable[[], MetadataImage], clock: Clock) -> None:
        self._image = image
        self._clock = clock
        self._sizes: dict[TopicPartition, int] = {}
        """Of partitions that there were at the last look, as they were told last."""
        self._kept_until = 0.0
        self._wakeup = asyncio.Event()
        self.ask: AskLogSizes | None = None
        """None: brokers cannot be asked, and no size is known."""

    def try_sizes(self) -> Sizes | None:
        """The sizes, as far as they are known; None: not yet, they are being asked for."""
        if self.ask is None:
            return {}
        if self._clock.monotonic() < self._kept_until:
            return self._sizes
        self._wakeup.set()
        return None

    async def run(self) -> None:
        """Ask when somebody wants to know, until cancelled."""
        while True:
            await self._wakeup.wait()
            await self.look()
            self._wakeup.clear()

    async def look(self) -> None:
        """Ask all leaders at the same time, for a bounded time."""
        image, pacer = self._image(), Pacer(PARTITIONS_PER_SLICE)
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        sizes: dict[TopicPartition, int] = {}
        for topic_name, topic in image.topics.items():
            for index, partition in enumerate(topic.own_partitions):
                await pacer.step()
                name = TopicPartition(topic_name, index)
                if name in self._sizes:
                    sizes[name] = self._sizes[name]
                if partition.leader in image.brokers:
                    led[partition.leader].append(name)
        await asyncio.gather(*(self._ask_leader(one, led[one], sizes) for one in sorted(led)))
        self._sizes = sizes  # all at once: a plan may be under way with those of before
        self._kept_until = self._clock.monotonic() + LOG_SIZES_KEPT_S

    async def _ask_leader(
        self, broker_id: int, led: Sequence[TopicPartition], sizes: dict[TopicPartition, int]
    ) -> None:
        """Put what the broker tells into `sizes`; an answer may have anything in it."""
        assert self.ask is not None
        try:
            async with asyncio.timeout(LOG_SIZES_WAIT_S):
                for first in range(0, len(led), LOG_SIZES_ASKED_MAX):
                    asked = led[first : first + LOG_SIZES_ASKED_MAX]
                    told = await self.ask(broker_id, asked)
                    sizes.update((name, max(0, told[name])) for name in asked if name in told)
        except (KafkaError, TimeoutError) as error:
            log.info("broker %d does not tell how large its logs are: %r", broker_id, error)
