"""Asks leaders how large their logs are, while the controller is about to plan moves.

A plan needs no exact sizes. So what was told counts for a while, and the plan does not wait for a
leader that is silent: its partitions count as ones of middle size. Nobody is asked while there is
nothing to plan.
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
        for name, topic in image.topics.items():
            for index, partition in enumerate(topic.own_partitions):
                await pacer.step()
                if partition.leader in image.brokers:
                    led[partition.leader].append(TopicPartition(name, index))
        self._sizes = {}
        await asyncio.gather(*(self._ask_leader(one, led[one]) for one in sorted(led)))
        self._kept_until = self._clock.monotonic() + LOG_SIZES_KEPT_S

    async def _ask_leader(self, broker_id: int, led: Sequence[TopicPartition]) -> None:
        assert self.ask is not None
        try:
            async with asyncio.timeout(LOG_SIZES_WAIT_S):
                for first in range(0, len(led), LOG_SIZES_ASKED_MAX):
                    some = led[first : first + LOG_SIZES_ASKED_MAX]
                    self._sizes.update(await self.ask(broker_id, some))
        except (KafkaError, TimeoutError) as error:
            log.info("broker %d does not tell how large its logs are: %r", broker_id, error)
