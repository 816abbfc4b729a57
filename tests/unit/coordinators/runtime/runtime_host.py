"""A runtime of toy shards, and helpers that read its answers and its log."""

from __future__ import annotations

import asyncio

from tests.support.partitions import content
from tests.unit.coordinators.runtime.toy_shard import ToyShard, refuse
from tidemill.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import iter_headers
from tidemill.wire.records import iter_records

INDEX = 3
COMMIT_TIMEOUT_S = 5.0
TURNS = 10


class Host:
    """A runtime of toy shards, with a clock that a test moves."""

    def __init__(self, make_shard=ToyShard):
        self._shard_class = make_shard
        self.clock = ManualClock()
        self.image = MetadataImage()
        self.shards = []
        self.timers = LoopTimers(self.clock)
        self.runtime = CoordinatorRuntime(
            "__toys",
            self._make_shard,
            clock=self.clock,
            timers=self.timers,
            disk=SimDisk(capacity_bytes=1 << 20),
            image=lambda: self.image,
            commit_timeout_s=COMMIT_TIMEOUT_S,
        )

    def _make_shard(self, current):
        self.shards.append(self._shard_class(current))
        return self.shards[-1]

    @property
    def shard(self):
        return self.shards[-1]

    def put(self, name, value):
        return outcome(self.runtime.write(INDEX, lambda shard, now: shard.put(name, value), refuse))

    def ask(self, operation):
        return outcome(self.runtime.write(INDEX, operation, refuse))

    def get(self, name):
        return outcome(
            self.runtime.read(INDEX, lambda shard, now: shard.values.get(name, "absent"), refuse)
        )

    async def load(self):
        """Let the loader run for some turns of the loop: enough to load everything."""
        task = asyncio.ensure_future(self.runtime.run())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        task.cancel()

    async def end_turn(self):
        """Let the runtime append the batches of this turn."""
        await asyncio.sleep(0)

    def pass_time(self, seconds):
        self.clock.advance(seconds)
        self.timers._turn()  # the loop's own clock does not follow the manual one


class Outcome(list):
    """The answer, as a list of one; empty while the request waits."""


def outcome(answer):
    heard = Outcome()
    if isinstance(answer, Deferred):
        answer.then(heard.append)
    else:
        heard.append(answer)
    return heard


def batches_of(part):
    """The records of each batch of the partition's log."""
    data = content(part)
    return [
        [(record.key, record.value) for record in iter_records(memoryview(data)[at:], header)]
        for at, header in iter_headers(data)
    ]


def records_of(part):
    return [record for batch in batches_of(part) for record in batch]
