"""The timers of a simulated loop come by time; cancelled ones do not."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.testing.sim.loop import SimLoop
from tidemill.testing.sim.timer_heap import SWEPT_MIN


@pytest.mark.parametrize("kept_one_in", [2, 10])
def test_timers_come_by_time_and_cancelled_ones_do_not(kept_one_in):
    """With one in ten left, most are swept out at once."""
    seen: list[int] = []
    count = 3 * SWEPT_MIN

    async def main() -> None:
        loop = asyncio.get_running_loop()
        order = sorted(range(count), key=lambda number: (number * 7919) % count)
        timers = {number: loop.call_later(1 + number, seen.append, number) for number in order}
        for number, timer in timers.items():
            if number % kept_one_in:
                timer.cancel()
        await asyncio.sleep(2 + count)

    SimLoop().run(main())
    assert seen == list(range(0, count, kept_one_in))


def test_a_timer_that_has_fired_can_be_cancelled_without_effect():
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        first = loop.call_later(1.0, seen.append, "first")
        loop.call_later(3.0, seen.append, "second")
        await asyncio.sleep(2.0)
        first.cancel()
        await asyncio.sleep(2.0)

    SimLoop().run(main())
    assert seen == ["first", "second"]
