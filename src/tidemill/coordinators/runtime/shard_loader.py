"""Loads the shards of a coordinator one after the other; a load that fails is tried again.

It is tried for as long as the shard is hosted, after a pause that grows. Until it succeeds the
partition is refused as loading: a coordinator with missing state is worse than none, and a fault of
the disk may pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, final

from tidemill.coordinators.runtime.hosted_shard import HostedShard
from tidemill.coordinators.runtime.shard import Shard
from tidemill.coordinators.runtime.shard_loading import pause_s_after, replay_log
from tidemill.core.clock import Clock
from tidemill.core.errors import TidemillError
from tidemill.core.logs import RateLimit
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.storage.files.disk import Disk

__all__ = ["ShardLoader"]

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)


@final
class ShardLoader(Generic[S]):
    """The shards that are waiting to be loaded, and the loop that loads them."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        timers: LoopTimers,
        disk: Disk,
        is_hosted: Callable[[HostedShard[S]], bool],
        loaded: Callable[[HostedShard[S], MetadataImage], None],
        load_again: Callable[[HostedShard[S], int], None],
    ) -> None:
        """`loaded` gets a shard and the image it was made with, `load_again` what has failed and
        how often in a row."""
        self._name = name
        self._clock = clock
        self._timers = timers
        self._disk = disk
        self._is_hosted = is_hosted
        self._loaded = loaded
        self._load_again = load_again
        self._waiting: deque[tuple[HostedShard[S], MetadataImage]] = deque()
        """Those that are no longer hosted are passed over."""
        self._log = RateLimit()
        """Failed loads: at most one log line per partition and minute."""
        self._wakeup = asyncio.Event()
        self._broken: Exception | None = None

    def add(self, hosted: HostedShard[S], image: MetadataImage) -> None:
        self._waiting.append((hosted, image))
        self._wakeup.set()

    def fail(self, broken: Exception) -> None:
        """A bug that no caller can be told of: `run` raises it."""
        self._broken = broken
        self._wakeup.set()

    async def run(self) -> None:
        """Load what is waiting, until cancelled; raises what `fail` was given."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            if self._broken is not None:
                raise self._broken
            while self._waiting:
                await self._load(*self._waiting.popleft())

    async def _load(self, hosted: HostedShard[S], image: MetadataImage) -> None:
        def is_wanted() -> bool:
            return self._is_hosted(hosted)

        try:
            count = await replay_log(
                hosted.partition, hosted.shard, self._disk, is_wanted=is_wanted
            )
        except TidemillError as error:
            if is_wanted():
                self._retry(hosted, error)
            return
        if is_wanted():
            log.info("%s-%d loaded: %d records", self._name, hosted.index, count)
            self._loaded(hosted, image)

    def _retry(self, hosted: HostedShard[S], error: TidemillError) -> None:
        """Load the partition again after a pause."""
        hosted.shard.resign()  # what it has replayed no longer counts against any limit
        failures = hosted.load_failures + 1
        pause_s = pause_s_after(failures)
        now = self._clock.monotonic()
        name = f"{self._name}-{hosted.index}"
        if self._log.allows(name, now):
            text = "%s cannot be loaded (attempt %d, the next in %.1f s): %s"
            log.error(text, name, failures, pause_s, error)
        timer = self._timers.add_after(pause_s, lambda: self._load_again(hosted, failures))
        hosted.timer = int((now + pause_s) * 1000), timer
