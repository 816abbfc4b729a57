"""The timer wheel: timers never fire early, and cancelled ones are gone at once."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from tidemill.core.loop.timers import LoopTimers, TimerWheel
from tidemill.testing.sim.loop import SimLoop


def test_a_timer_fires_after_its_deadline_and_never_before():
    fired: list[str] = []
    wheel = TimerWheel(now=100.0, slot_s=0.01)
    wheel.add(100.05, lambda: fired.append("a"))
    wheel.advance(100.05)
    assert fired == []
    wheel.advance(100.07)
    assert fired == ["a"]


def test_a_cancelled_timer_leaves_the_wheel_at_once():
    wheel = TimerWheel(now=0.0)
    timers = [wheel.add(30.0, lambda: None) for _ in range(1000)]
    for timer in timers:
        timer.cancel()
    assert len(wheel) == 0
    assert wheel.next_deadline() is None


def test_timers_fire_in_the_order_of_their_slots_and_then_of_being_added():
    fired: list[int] = []
    wheel = TimerWheel(now=0.0, slot_s=0.01)
    for number, deadline in enumerate((0.5, 0.1, 0.5, 0.3)):
        wheel.add(deadline, lambda number=number: fired.append(number))
    wheel.advance(1.0)
    assert fired == [1, 3, 0, 2]


def test_a_timer_that_is_already_due_fires_at_the_next_turn():
    fired: list[str] = []
    wheel = TimerWheel(now=10.0, slot_s=0.01)
    wheel.add(5.0, lambda: fired.append("late"))
    wheel.advance(10.02)
    assert fired == ["late"]


def test_an_action_may_add_another_timer():
    fired: list[str] = []
    wheel = TimerWheel(now=0.0, slot_s=0.01)
    wheel.add(0.1, lambda: wheel.add(0.1, lambda: fired.append("second")))
    wheel.advance(0.2)
    wheel.advance(0.3)
    assert fired == ["second"]


def test_when_an_action_fails_the_others_run_in_the_next_turn():
    fired: list[str] = []
    wheel = TimerWheel(now=0.0, slot_s=0.01)

    def fail() -> None:
        raise ValueError("on purpose")

    wheel.add(0.1, fail)
    wheel.add(0.1, lambda: fired.append("after"))
    with pytest.raises(ValueError, match="on purpose"):
        wheel.advance(0.2)
    wheel.advance(0.2)
    assert fired == ["after"]


def test_an_action_may_ask_for_the_next_deadline_and_cancel_others_that_are_due():
    fired: list[str] = []
    wheel = TimerWheel(now=0.0, slot_s=0.01)
    doomed = wheel.add(0.2, lambda: fired.append("cancelled"))

    def act() -> None:
        doomed.cancel()
        wheel.next_deadline()
        fired.append("acted")

    wheel.add(0.1, act)
    wheel.advance(0.3)
    assert fired == ["acted"]
    assert len(wheel) == 0


class _Owner:
    """Holds a timer whose action is its own method: a cycle, as in a request with a deadline."""

    def __init__(self, wheel):
        self.timer = wheel.add(1.0, self.act)

    def act(self):
        pass


@pytest.mark.parametrize(
    "end", [lambda wheel, owner: owner.timer.cancel(), lambda wheel, owner: wheel.advance(2.0)]
)
def test_a_timer_that_ended_leaves_its_owner_to_no_collector(end):
    wheel = TimerWheel(now=0.0)
    owner = _Owner(wheel)
    ended = weakref.ref(owner)
    gc.disable()
    try:
        end(wheel, owner)
        del owner
        assert ended() is None
    finally:
        gc.enable()


def test_what_is_due_at_the_very_moment_of_its_slot_fires():
    """1050.07 / 0.01 is a little below 105007: the wheel must not wait for a moment that is now."""
    wheel, fired = TimerWheel(now=1050.0), []
    wheel.add(1050.065, lambda: fired.append(1))
    deadline = wheel.next_deadline()
    assert deadline is not None
    wheel.advance(deadline)
    assert fired == [1]


class _RoundedClock:
    """Its time is the loop's, in whole microseconds."""

    def monotonic(self) -> float:
        return round(asyncio.get_running_loop().time(), 6)


def test_a_deadline_that_the_clock_rounds_to_just_before_its_slot_is_reached():
    """Found by a simulation: 1084.33 is in slot 108,432, and is where slot 108,433 begins."""

    async def main() -> None:
        timers, fired = LoopTimers(_RoundedClock()), asyncio.Event()
        timers.add_after(84.325, fired.set)
        await fired.wait()
        timers.stop()

    SimLoop().run(main())
