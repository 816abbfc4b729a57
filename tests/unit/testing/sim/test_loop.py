"""The simulated loop: time costs nothing, a seed decides the order, a dead host runs no cleanup."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

import pytest

from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.rng import SeededRng
from tidemill.testing.manual_clock import MONOTONIC_START_S
from tidemill.testing.sim.loop import (
    CURRENT_HOST,
    Deadlock,
    EscapedSimulation,
    SimHost,
    SimLoop,
    SimulationFailed,
    SimulationTooLong,
)


def _fail(name: str, error: BaseException) -> None:
    raise AssertionError(name) from error


def _spawn(work: Coroutine[Any, Any, None], host: SimHost | None = None) -> None:
    context = copy_context()
    context.run(CURRENT_HOST.set, host)
    context.run(Supervisor(_fail).spawn, "work", work)


def _order_of_ten(rng: SeededRng | None) -> list[int]:
    seen: list[int] = []

    async def note(number: int) -> None:
        await asyncio.sleep(0)
        seen.append(number)

    async def main() -> None:
        await asyncio.gather(*(note(number) for number in range(10)))

    SimLoop(rng).run(main())
    return seen


def test_time_jumps_to_the_next_timer():
    async def main() -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await asyncio.sleep(3 * 24 * 3600.0)
        return loop.time() - started

    assert SimLoop(time_limit_s=1e9).run(main()) == pytest.approx(3 * 24 * 3600.0, abs=1e-6)


def test_timers_fire_exactly_on_time():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for step in range(1, 200):
            due = loop.time() + step / 7
            await asyncio.sleep(step / 7)
            assert loop.time() >= due

    SimLoop(SeededRng(1)).run(main())


def test_the_same_seed_gives_the_same_order():
    assert _order_of_ten(SeededRng(5)) == _order_of_ten(SeededRng(5))


def test_another_seed_gives_another_order():
    assert len({tuple(_order_of_ten(SeededRng(seed))) for seed in range(20)}) > 15


def test_without_a_seed_it_is_first_come_first_served():
    assert _order_of_ten(None) == list(range(10))


def test_sets_of_tasks_and_futures_are_iterated_in_the_same_order():
    async def main() -> list[list[int]]:
        loop = asyncio.get_running_loop()
        kept = [object() for _ in range(1000)]  # moves the next allocations
        futures = [loop.create_future() for _ in range(50)]
        order = [futures.index(future) for future in set(futures)]
        _spawn(asyncio.sleep(1))
        _spawn(asyncio.sleep(2))
        tasks = [task.get_name() for task in asyncio.all_tasks()]
        del kept
        return [order, tasks]

    assert SimLoop().run(main()) == SimLoop().run(main())


def test_a_deadlock_is_an_error_that_names_the_waiting_tasks():
    async def waits_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="waits_for_ever"):
        SimLoop().run(waits_for_ever())


def test_too_much_time_is_an_error():
    with pytest.raises(SimulationTooLong):
        SimLoop(time_limit_s=10.0).run(asyncio.sleep(11.0))


def test_waiting_without_letting_time_pass_is_an_error():
    async def main() -> None:
        while True:  # noqa: ASYNC110 - exactly this is what must be caught
            await asyncio.sleep(0)

    with pytest.raises(SimulationTooLong, match="main"):
        SimLoop().run(main())


def test_R2_an_executor_is_refused():
    async def main() -> None:
        await asyncio.to_thread(len, "")

    with pytest.raises(EscapedSimulation, match="thread"):
        SimLoop().run(main())


def test_R2_a_call_from_another_thread_fails_the_run():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        heard: list[BaseException] = []

        def call() -> None:
            try:
                loop.call_soon_threadsafe(lambda: None)
            except EscapedSimulation as error:
                heard.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        assert heard

    with pytest.raises(SimulationFailed, match="a thread calls"):
        SimLoop().run(main())


def test_a_callback_that_fails_fails_the_run():
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailed) as caught:
        SimLoop().run(main())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_nothing_of_a_dead_host_runs_not_even_its_finally_blocks():
    seen: list[str] = []
    host = SimHost("victim")

    async def work() -> None:
        try:
            while True:
                seen.append("works")
                await asyncio.sleep(1.0)
        finally:
            seen.append("cleans up")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        _spawn(work(), host)
        loop.call_later(5.0, seen.append, "a timer beside it")
        await asyncio.sleep(2.5)
        loop.kill(host)
        await asyncio.sleep(10.0)
        assert seen == ["works", "works", "works", "a timer beside it"]

    SimLoop(SeededRng(1)).run(main())


def test_a_context_that_a_dead_host_has_begun_is_buried_and_does_not_end():
    host, ended = SimHost("h"), []

    @asynccontextmanager
    async def begun() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.sleep(1)
            ended.append("it")

    async def work() -> None:
        async with begun():
            await asyncio.sleep(10)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        _spawn(work(), host)
        await asyncio.sleep(1)
        loop.kill(host)
        await asyncio.sleep(20)
        loop.bury()
        loop.bury()
        await asyncio.sleep(20)

    SimLoop(SeededRng(1)).run(main())
    assert ended == []


def test_what_a_host_starts_belongs_to_it():
    seen: list[str] = []
    host = SimHost("victim")

    async def child() -> None:
        await asyncio.sleep(5.0)
        seen.append("child")

    async def parent() -> None:
        Supervisor(_fail).spawn("child", child())
        asyncio.get_running_loop().call_later(5.0, seen.append, "callback")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        _spawn(parent(), host)
        await asyncio.sleep(1.0)
        loop.kill(host)
        await asyncio.sleep(10.0)

    SimLoop(SeededRng(1)).run(main())
    assert seen == []


async def _tick(seen: list[float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        seen.append(round(asyncio.get_running_loop().time() - MONOTONIC_START_S, 3))


@pytest.mark.parametrize(
    ("clock_stops", "ticks"),
    [(False, [1.0, 2.0, 12.5, 13.5]), (True, [1.0, 2.0, 13.0, 14.0])],
)
def test_a_paused_host_goes_on_with_its_timers_due_or_shifted(clock_stops, ticks):
    seen: list[float] = []
    host = SimHost("paused")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        _spawn(_tick(seen), host)
        await asyncio.sleep(2.5)
        loop.pause(host, clock_stops=clock_stops)
        await asyncio.sleep(10.0)
        assert seen == ticks[:2]
        loop.resume(host)
        await asyncio.sleep(1.8)
        assert host.time(loop.time()) == pytest.approx(loop.time() - 10.0 * clock_stops)

    SimLoop(SeededRng(1)).run(main())
    assert seen == ticks


def test_a_host_that_is_killed_while_it_is_paused_never_goes_on():
    seen: list[float] = []
    host = SimHost("paused")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        _spawn(_tick(seen), host)
        await asyncio.sleep(1.5)
        loop.pause(host)
        await asyncio.sleep(1.0)
        loop.kill(host)
        loop.resume(host)
        await asyncio.sleep(10.0)

    SimLoop(SeededRng(1)).run(main())
    assert seen == [1.0]


def test_the_loop_tells_whose_code_has_run_since_it_was_asked():
    told: list[set[SimHost | None]] = []
    one, other, idle = SimHost("one"), SimHost("other"), SimHost("idle")

    async def step() -> None:
        """One turn of its host."""

    async def main() -> None:
        loop.take_ran()
        _spawn(step(), one)
        _spawn(step(), other)
        _spawn(asyncio.sleep(9.0), idle)
        await asyncio.sleep(1.0)
        loop.take_ran()
        _spawn(step(), one)
        await asyncio.sleep(1.0)
        told.append(loop.take_ran())

    loop = SimLoop()
    loop.run(main())
    assert told == [{None, one}]


def test_code_that_runs_while_the_loop_is_asked_is_told_again():
    """It goes on after the answer, and may change something more."""
    told: list[set[SimHost | None]] = []
    caller, called = SimHost("caller"), SimHost("called")

    def answer() -> None:
        told.append(loop.take_ran())

    async def call() -> None:
        loop.take_ran()
        loop.run_on(called, copy_context(), answer)
        told.append(loop.take_ran())
        told.append(loop.take_ran())

    async def main() -> None:
        _spawn(call(), caller)
        await asyncio.sleep(1.0)

    loop = SimLoop()
    loop.run(main())
    assert told == [{caller, called}, {caller, called}, {caller}]
