"""What every clock promises: the machine's, the manual and the simulated one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.rng import SeededRng
from tidemill.testing.manual_clock import ManualClock, SimClock
from tidemill.testing.sim.loop import SimLoop

READS_MAX = 1_000_000


def _system() -> tuple[Clock, Callable[[], None]]:
    return SystemClock(), lambda: None


def _manual() -> tuple[Clock, Callable[[], None]]:
    clock = ManualClock()
    return clock, lambda: clock.advance(0.001)


def _simulated() -> tuple[Clock, Callable[[], None]]:
    times = iter(range(1, READS_MAX))
    return SimClock(lambda: next(times) / 1000), lambda: None


@pytest.fixture(params=[_system, _manual, _simulated], ids=["system", "manual", "simulated"])
def clock_and_step(request: pytest.FixtureRequest) -> tuple[Clock, Callable[[], None]]:
    return request.param()


@pytest.mark.parametrize("name", ["monotonic", "boottime"])
def test_monotonic_and_boot_time_advance_and_never_go_back(clock_and_step, name):
    clock, step = clock_and_step
    read = getattr(clock, name)
    first = last = read()
    for _ in range(READS_MAX):
        step()
        now = read()
        assert now >= last
        last = now
        if now > first:
            return
    pytest.fail("time stands still")


def test_wall_time_is_whole_milliseconds_of_this_century(
    clock_and_step,
):
    clock, _ = clock_and_step
    assert isinstance(clock.wall_ms(), int)
    assert 946_684_800_000 < clock.wall_ms() < 4_102_444_800_000


def test_a_manual_clock_stands_still_until_it_is_moved():
    clock = ManualClock(wall_ms=5_000, monotonic=7.0)
    assert (clock.wall_ms(), clock.monotonic()) == (5_000, 7.0)
    clock.advance(1.5)
    assert (clock.wall_ms(), clock.monotonic()) == (6_500, 8.5)


def test_boot_time_runs_while_the_machine_sleeps():
    clock = ManualClock(monotonic=7.0)
    clock.sleep_machine(60.0)
    assert (clock.monotonic(), clock.boottime()) == (7.0, 67.0)


def test_setting_the_wall_clock_back_leaves_monotonic_time_alone():
    for clock in (ManualClock(), SimClock(lambda: 9.0)):
        wall_ms, monotonic = clock.wall_ms(), clock.monotonic()
        clock.jump_wall(-3_600_000)
        assert clock.wall_ms() == wall_ms - 3_600_000
        assert clock.monotonic() == monotonic


def test_a_simulated_clock_runs_with_its_loop():
    loop = SimLoop(SeededRng(1))
    clock = SimClock(loop.time)
    wall_ms, monotonic = clock.wall_ms(), clock.monotonic()
    loop.call_later(90.0, loop.stop)
    loop.run_forever()
    loop.close()
    assert clock.monotonic() - monotonic == pytest.approx(90.0, abs=1e-6)
    assert clock.wall_ms() - wall_ms == 90_000
