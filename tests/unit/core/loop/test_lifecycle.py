"""Every task has an owner: none dies silently, none outlives its owner."""

from __future__ import annotations

import asyncio

from tests.support.memory_peer import simulated
from tidemill.core.loop.lifecycle import Supervisor


class Owner:
    def __init__(self):
        self.failures = []
        self.supervisor = Supervisor(lambda name, error: self.failures.append((name, str(error))))


async def fail(message):
    raise RuntimeError(message)


@simulated
async def test_a_task_that_fails_is_reported_with_its_name():
    owner = Owner()
    owner.supervisor.spawn("flusher", fail("disk on fire"))
    await asyncio.sleep(0.1)
    assert owner.failures == [("flusher", "disk on fire")]
    assert len(owner.supervisor) == 0


@simulated
async def test_a_task_that_ends_is_forgotten():
    owner = Owner()
    owner.supervisor.spawn("short", asyncio.sleep(1))
    assert len(owner.supervisor) == 1
    await asyncio.sleep(2)
    assert len(owner.supervisor) == 0
    assert owner.failures == []


@simulated
async def test_stopping_cancels_in_order_and_waits():
    owner, ended = Owner(), []

    async def work(name):
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.5)
            ended.append(name)

    for name in ("first", "second"):
        owner.supervisor.spawn(name, work(name))
    await asyncio.sleep(0.1)
    await owner.supervisor.stop()
    assert ended == ["first", "second"]
    assert owner.failures == []


@simulated
async def test_a_task_that_fails_while_it_is_stopped_is_reported_too():
    owner = Owner()

    async def work():
        try:
            await asyncio.sleep(1000)
        finally:
            await fail("could not flush")

    owner.supervisor.spawn("flusher", work())
    await asyncio.sleep(0.1)
    await owner.supervisor.stop()
    assert owner.failures == [("flusher", "could not flush")]


@simulated
async def test_no_task_starts_after_the_supervisor_has_stopped():
    owner, began = Owner(), []

    async def work():
        began.append(True)

    await owner.supervisor.stop()
    owner.supervisor.spawn("late", work())
    await asyncio.sleep(0.1)
    assert not began
