"""Long work yields after each slice."""

from __future__ import annotations

import asyncio

from tests.support.coroutines import run
from tidemill.core.loop.pacing import Pacer, run_slices


def _turns(work) -> int:
    """How many turns of the loop another task gets before `work` ends."""
    turns = 0

    async def others():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def scenario():
        task = asyncio.ensure_future(others())
        await asyncio.sleep(0)
        await work()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return turns

    return run(scenario())


def test_a_pacer_yields_once_per_full_slice():
    async def work():
        pacer = Pacer(3)
        for _ in range(7):
            await pacer.step()

    assert _turns(work) == 2


def test_a_costly_step_ends_the_slice_before_it_and_runs_alone():
    async def work():
        pacer = Pacer(3)
        await pacer.step(10)
        await pacer.step(1)
        await pacer.step(3)

    assert _turns(work) == 2


def test_slices_run_one_per_turn_until_the_work_is_done():
    left = [False, False, True]

    async def work():
        await run_slices(lambda: left.pop(0))

    assert _turns(work) == 2
    assert left == []
