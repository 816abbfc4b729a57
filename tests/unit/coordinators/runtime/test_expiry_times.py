"""How late a shard's deadlines are handled, on simulated time."""

from __future__ import annotations

import pytest

from tests.support.partitions import leader
from tests.unit.coordinators.runtime.runtime_host import INDEX
from tests.unit.coordinators.runtime.toy_shard import ToyShard
from tidemill.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.coordinators.runtime.shard import Result
from tidemill.core.limits import MIB
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.storage.files.disk_room import DiskRoom
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


class LateShard(ToyShard):
    """Something is due whenever it has been loaded, as after a transaction's timeout."""

    def loaded(self, now):
        self.deadline_ms = now.monotonic_ms


def set_free(part, free_bytes):
    room = part.room
    room.end_look(
        room.begin_look(), total_bytes=1 << 40, free_bytes=free_bytes, reserve_bytes=64 * MIB
    )


async def load_times_s(host, *, seconds, meanwhile):
    """When the shard was loaded again, in seconds from now on."""
    times_s = []
    for step in range(seconds * 10):
        before = len(host.shards)
        meanwhile()
        host.pass_time(0.1)
        await host.end_turn()
        times_s += [step // 10] * (len(host.shards) - before)
    return times_s


@pytest.mark.parametrize("is_used", [False, True])
def test_I36_a_deadline_that_cannot_be_written_waits_longer_each_time(host, is_used):
    async def body(host):
        part = leader(room=DiskRoom())
        set_free(part, 0)
        host.runtime.lead(INDEX, part)

        def use():
            if is_used:
                assert host.ask(lambda shard, now: shard.wake("")) == ["woke"]

        times_s = await load_times_s(host, seconds=30, meanwhile=use)
        assert times_s == [0, 1, 3, 7, 15, 25]

    host(body, make_shard=LateShard)


def test_a_deadline_that_could_not_be_written_is_handled_once_an_append_succeeds(host):
    async def body(host):
        part = leader(room=DiskRoom())
        set_free(part, 0)
        host.runtime.lead(INDEX, part)
        await load_times_s(host, seconds=10, meanwhile=lambda: None)
        set_free(part, 1 << 40)
        assert host.put("a", "1") == ["put a"]
        host.pass_time(0.01)
        assert "expired" in host.shard.values

    host(body, make_shard=LateShard)
