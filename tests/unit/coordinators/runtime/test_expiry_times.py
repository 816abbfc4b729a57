"""How late a shard's deadlines are handled, on simulated time."""

from __future__ import annotations

import pytest

from tests.support.partitions import leader
from tests.unit.coordinators.runtime.runtime_host import INDEX
from tests.unit.coordinators.runtime.toy_shard import ToyShard
from tidemill.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.coordinators.runtime.shard import Result
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.testing.manual_clock import SimClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.testing.sim.loop import SimLoop

LATE_MS_MAX = 2
"""One millisecond of the timer, and one of the clock that deadlines are compared with."""


class PunctualShard(ToyShard):
    """Handles one due deadline per call, and keeps how late it did."""

    def __init__(self, image):
        super().__init__(image)
        self.due_ms = []
        self.late_ms = []

    def next_deadline_ms(self):
        return min(self.due_ms, default=None)

    def expire(self, now):
        first = self.next_deadline_ms()
        if first is not None and first <= now.monotonic_ms:
            self.due_ms.remove(first)
            self.late_ms.append(now.monotonic_ms - first)
        return Result(None)


def late_ms_of(delays_ms):
    """How late the runtime handles deadlines that are set this long before, all at once."""
    shards = []

    def make_shard(image):
        shards.append(PunctualShard(image))
        return shards[-1]

    async def main(loop):
        clock = SimClock(loop.time)
        timers = LoopTimers(clock)
        runtime = CoordinatorRuntime(
            "__toys",
            make_shard,
            clock=clock,
            timers=timers,
            disk=SimDisk(),
            image=MetadataImage,
            commit_timeout_s=5.0,
        )
        runtime.lead(INDEX, leader())

        def set_deadlines(shard, now):
            shard.due_ms = [now.monotonic_ms + delay_ms for delay_ms in delays_ms]
            return Result(None)

        runtime.write(INDEX, set_deadlines, str)
        while shards[0].due_ms:
            passed = loop.create_future()
            loop.call_later(0.001, passed.set_result, None)
            await passed
        timers.stop()

    loop = SimLoop()
    loop.run(main(loop))
    return shards[0].late_ms


@pytest.mark.parametrize("delay_ms", [1, 7, 10, 300, 305, 6_000])
def test_a_session_ends_within_two_milliseconds_of_its_time(delay_ms):
    (late_ms,) = late_ms_of([delay_ms])
    assert late_ms <= LATE_MS_MAX


def test_work_that_one_pass_leaves_over_waits_a_millisecond_not_a_slot_of_the_wheel():
    late_ms = late_ms_of([300] * 5)
    assert late_ms[-1] <= LATE_MS_MAX * 5


def test_deadlines_that_pass_while_a_batch_is_open_are_seen_at_their_own_time(host):
    """The time of the batch's first record is older: by it, nothing would be due yet."""

    async def body(host):
        host.runtime.lead(INDEX, leader())

        def set_deadline(shard, now):
            shard.deadline_ms = now.monotonic_ms + 1000
            return shard.wake("")

        host.ask(set_deadline)
        host.put("a", "1")
        host.pass_time(1.1)
        assert host.shard.values["expired"] == str(host.clock.wall_ms())
        host.put("b", "2")
        assert host.runtime._now().wall_ms == host.clock.wall_ms()  # it never goes back

    host(body)
