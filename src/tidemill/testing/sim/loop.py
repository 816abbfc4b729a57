"""An event loop on simulated time, in which a seed chooses the order of events.

Theory of operation. Where a real loop waits for sockets, the clock moves to the next timer instead.
The seed decides which of several ready callbacks runs first (without a seed: first
come, first served). asyncio promises an order that a machine under load does not keep between
sockets, so code that needs an order must create it. The same seed gives the same run:
- tasks and futures hash by their number, because asyncio keeps them in sets and iterates over them;
- nothing comes from outside: a call from another thread is an error, and so is an executor;
- if every task waits and no event is left, that is an error, which lists the waiting tasks.

A `SimHost` is one life of one process. Everything started in its context belongs to it. When it
dies, none of that runs again, not even `finally` blocks: a crashed process cleans up nothing. Its
tasks are kept in a graveyard, because dropping a coroutine would run those blocks. They are closed
with the loop, when no test can observe it any more.

A host can also be paused: nothing of it runs until it goes on. Like SIGSTOP, its clock runs
meanwhile and the timers that came due run together afterwards. Or like a virtual machine that its
own host has stopped: its clock stands still too, and its timers come due later by the pause.

An exception that reaches the loop's handler (a callback that failed, a task whose failure was never
retrieved) fails the whole run.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple, Unpack, final
from weakref import WeakSet

from tidemill.core.rng import Rng
from tidemill.testing.manual_clock import MONOTONIC_START_S
from tidemill.testing.sim.timer_heap import (
    RESOLUTION_S,
    SWEPT_MIN,
    SimHandle,
    SimTimer,
    TimerHeap,
)

__all__ = [
    "CURRENT_HOST",
    "Deadlock",
    "EscapedSimulation",
    "SimHost",
    "SimLoop",
    "SimulationFailed",
    "SimulationTooLong",
    "without_collector",
]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PLAIN_RUN = asyncio.Handle._run
"""Tests replace it to watch every callback of every loop, and of this one too."""
TIME_LIMIT_S = 24 * 3600.0
TICK_S = 1e-9
TURNS_MAX = 100_000
"""Turns without any time passing: a task polls instead of waiting."""
FINALLY_BLOCKS_MAX = 20
YOUNGEST = 0
"""The generation of objects that no collection has seen yet."""


class SimulationFailed(Exception):
    """A callback failed, or a task whose result was never retrieved."""


class Deadlock(SimulationFailed):
    """Every task waits, and no event is left that could wake one."""


class SimulationTooLong(SimulationFailed):
    """The run used up its simulated time, or made too many turns without any time passing."""


class EscapedSimulation(SimulationFailed):
    """A call came from another thread, or asked for one."""


@final
class SimHost:
    """One life of one process. `alive` turns False once, and stays so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.is_buried = False
        """Whether its coroutines were closed: what it leaves behind from then on is no failure."""
        self.paused_at: float | None = None
        """Since when nothing of it runs; None: it runs."""
        self.clock_stops = False
        """Whether its clock stands still while it is paused."""
        self.clock_lag_s = 0.0
        """How long its clock has stood still in earlier pauses."""
        self.held: list[SimHandle | SimTimer] = []
        """What would have run during the pause."""
        self.timers: list[SimTimer] = []
        """Its timers, while its clock stands still."""
        self.on_resume: list[Callable[[], None]] = []
        """What happened to it from outside during the pause, for when it goes on."""

    def time(self, now: float) -> float:
        """Its own clock, given the simulation's time."""
        if self.clock_stops and self.paused_at is not None:
            now = self.paused_at
        return now - self.clock_lag_s

    def __repr__(self) -> str:
        return f"<{self.name}{'' if self.alive else ', dead'}>"


CURRENT_HOST: ContextVar[SimHost | None] = ContextVar("current_host", default=None)
"""The host of the running code; None: outside the simulation, as in a test."""


class _NumberedFuture(asyncio.Future[T]):
    """Hashes by its number, so that a set of futures has the same order in every run."""

    number: int
    host: SimHost | None
    """Both are set by the loop, at once: an `__init__` would cost more than the rest of it."""

    def __hash__(self) -> int:
        return self.number


class _NumberedTask(asyncio.Task[T]):
    """Like `_NumberedFuture`; also knows its host."""

    def __init__(
        self,
        number: int,
        host: SimHost | None,
        work: Coroutine[Any, Any, T],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self.number = number  # set before the task is made: asyncio hashes it at once
        self.host = host
        super().__init__(work, loop=loop, name=f"task {number}", context=context)

    def __hash__(self) -> int:
        return self.number


def host_of(handle: SimHandle | SimTimer) -> SimHost | None:
    """Whose code a handle runs."""
    return handle._context.get(CURRENT_HOST)


@final
class SimLoop(asyncio.BaseEventLoop):
    """The event loop. `rng` picks among the ready callbacks; None: first come, first served."""

    _ready: deque[SimHandle | SimTimer]
    _asyncgens: WeakSet[AsyncGenerator[Any, Any]]
    _closed: bool
    _stopping: bool

    def __init__(self, rng: Rng | None = None, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        super().__init__()
        self._now = MONOTONIC_START_S
        self._time_limit = MONOTONIC_START_S + time_limit_s
        self._rng = rng
        self._timers = TimerHeap()
        self._turns = 0
        """Turns of the loop since time last moved."""
        self._numbers = 0
        self._inside: list[SimHost | None] = [None]
        """Whose code runs now: that of the handle, and within it that of other hosts."""
        self._ran: set[SimHost | None] = {None}
        self._graveyard: list[_NumberedTask[Any]] = []
        self._failures: list[dict[str, Any]] = []
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]  # a factory is a callable

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, end everything else, and close the loop."""
        with without_collector():
            try:
                result = self.run_until_complete(main)
                self._check_failures()
                return result
            finally:
                self.close_coroutines()
                self.close()

    def run_on(self, host: SimHost, context: Context, method: Callable[..., T], *args: object) -> T:
        """Call code of a host in the midst of what something else does."""
        self._ran.add(host)
        self._inside.append(host)
        try:
            return context.run(method, *args)
        finally:
            self._inside.pop()

    def clock_of(self, host: SimHost) -> Callable[[], float]:
        """What tells the time of a host's own clock."""
        return lambda: host.time(self._now)

    def take_ran(self) -> set[SimHost | None]:
        """Whose code has run since the last call; None: code of no host, such as a test.

        What runs now goes on after this call, so it is in the next answer, too.
        """
        ran, self._ran = self._ran, set(self._inside)
        return ran

    def kill(self, host: SimHost) -> None:
        """End a host: none of its code runs from now on."""
        host.alive = False
        host.held, host.timers, host.on_resume = [], [], []
        self._graveyard += [task for task in self._open_tasks() if task.host is host]

    def pause(self, host: SimHost, *, clock_stops: bool = False) -> None:
        """Let nothing of a host run until `resume`."""
        host.paused_at, host.clock_stops = self._now, clock_stops
        if clock_stops:
            host.timers = self._timers.take_if(lambda timer: host_of(timer) is host)

    def resume(self, host: SimHost) -> None:
        """Let a paused host go on; no effect if it died meanwhile."""
        if host.paused_at is None or not host.alive:
            return
        paused_s = self._now - host.paused_at
        if host.clock_stops:
            host.clock_lag_s += paused_s
        host.paused_at = None
        self._timers.put_back(host.timers, later_s=paused_s)
        self._ready.extend(host.held)
        happened, host.on_resume = host.on_resume, []
        host.held, host.timers = [], []
        for call in happened:
            call()

    def close_coroutines(self) -> None:
        """The run is over: close every remaining coroutine, and ignore what it raises.

        What they held is freed here, not during another run. All of it is young: the collector was
        off. Whatever else this process has is not looked through.
        """
        self._graveyard += self._open_tasks()
        self._close_graveyard()
        gc.collect(YOUNGEST)
        self._failures.clear()

    def bury(self) -> None:
        """Close the coroutines of dead hosts, and free what they held: for a run that is long.

        They are closed as code of their host, so nothing of what they still start will run, and
        what they leave behind is no failure: the next burial finds most of it. What the living left
        behind is.
        """
        gc.collect()
        self._close_graveyard()
        self._drop_dead()

    def _close_graveyard(self) -> None:
        for task in dict.fromkeys(self._graveyard):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is intended
            if task.host is not None:
                task.host.is_buried = True
            context = copy_context()
            context.run(CURRENT_HOST.set, task.host)
            context.run(_close, task.get_coro())
        self._graveyard.clear()

    def _drop_dead(self) -> None:
        """Forget what dead hosts would do. Their timers stay, empty: order is drawn among all."""
        hosts = [(one, host_of(one)) for one in self._ready]
        self._ready.clear()  # in place: this is part of a turn
        self._ready.extend(one for one, host in hosts if host is None or host.alive)
        for _, timer in self._timers.pairs:
            if (owner := host_of(timer)) is not None and not owner.alive:
                timer.empty()

    def describe_waiting(self) -> str:
        """The waiting tasks and where they wait, one line each."""
        living = [task for task in self._open_tasks() if task.host is None or task.host.alive]
        return "\n".join(map(_describe, living))

    def _open_tasks(self) -> list[_NumberedTask[Any]]:
        in_order = sorted(asyncio.all_tasks(self), key=hash)  # the hash of a task is its number
        return [task for task in in_order if isinstance(task, _NumberedTask)]

    def _check_failures(self) -> None:
        if self._failures:
            first = self._failures[0]
            raise SimulationFailed(first.get("message", "")) from first.get("exception")

    # --- what asyncio calls ----------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("the loop is closed")
        handle = SimHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("the loop is closed")
        return SimTimer(when, callback, args, self, context, self._timers)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("the loop is closed")
        return SimTimer(self._now + delay, callback, args, self, context, self._timers)

    def create_future(self) -> asyncio.Future[Any]:
        future: _NumberedFuture[Any] = _NumberedFuture(loop=self)
        self._numbers = future.number = self._numbers + 1
        future.host = self._inside[-1]
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        host = getattr(context.get("future") or context.get("task"), "host", None)
        if host is None or not host.is_buried:
            self._failures.append(context)

    def set_exception_handler(self, handler: Callable[..., object] | None) -> None:
        """Not kept: it would never be called, and keep brokers that are dead."""

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, T],
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        host = CURRENT_HOST.get() if context is None else context.get(CURRENT_HOST)
        self._numbers += 1
        return _NumberedTask(self._numbers, host, work, loop, context)

    def _run_once(self) -> None:
        """One turn: asyncio's own, without sockets. What most turns need is in line."""
        self._turns += 1
        ready, inside = self._ready, self._inside
        is_watched = asyncio.Handle._run is not _PLAIN_RUN
        self._queue_due(ready)
        for _ in range(len(ready)):
            if self._rng is None or len(ready) == 1:
                handle = ready.popleft()
            else:
                index = self._rng.below(len(ready))
                handle = ready[index]
                del ready[index]
            context = handle._context
            host = context.get(CURRENT_HOST)
            if host is not None and (host.paused_at is not None or not host.alive):
                if host.alive:
                    host.held.append(handle)
            elif not handle._cancelled:
                self._ran.add(host)
                inside[0] = host
                try:
                    if is_watched:
                        handle._run()
                        continue
                    context.run(handle._callback, *handle._args)
                except BaseException as error:  # noqa: BLE001 - as in asyncio
                    self._callback_failed(handle, error)

    def _queue_due(self, ready: deque[SimHandle | SimTimer]) -> None:
        """Let time pass if nothing is ready; then queue the timers that are due."""
        timers, pairs = self._timers, self._timers.pairs
        if pairs and (pairs[0][1]._cancelled or (2 * timers.cancelled > len(pairs) > SWEPT_MIN)):
            timers.drop_cancelled()
        if not ready and not self._stopping:
            self._pass_time()
        now = self._now
        if now > self._time_limit or self._turns > TURNS_MAX:
            raise SimulationTooLong(f"time is up; waiting:\n{self.describe_waiting()}")
        if pairs and pairs[0][0] < now + RESOLUTION_S:
            timers.move_due(now, ready)

    def _callback_failed(self, handle: SimHandle | SimTimer, error: BaseException) -> None:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise error
        message = f"exception in callback {handle._callback!r}"
        self.call_exception_handler({"message": message, "exception": error})

    def _pass_time(self) -> None:
        if not self._timers.pairs:
            raise Deadlock(f"nothing will ever happen; waiting:\n{self.describe_waiting()}")
        when = self._timers.pairs[0][0]
        if when > self._now:
            # A little past it, like every real clock: code that divides time into slots meets no
            # edge.
            self._now = when + TICK_S
            self._turns = 0

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """As in asyncio, but from this thread. What the dead have begun is not ended."""
        self._asyncgens.discard(agen)
        host = CURRENT_HOST.get()
        if not self._closed and (host is None or host.alive):
            self.call_soon(self.create_task, agen.aclose())

    def _write_to_self(self) -> None:
        raise self._escaped("a thread calls into the simulation")

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        raise self._escaped(f"{func!r} wants to run in a thread")

    def _escaped(self, message: str) -> EscapedSimulation:
        """Also kept as a failure: the exception may be raised in another thread."""
        escaped = EscapedSimulation(message)
        self._failures.append({"message": message, "exception": escaped})
        return escaped


@contextmanager
def without_collector() -> Iterator[None]:
    """A collection of garbage would come at another time in every run."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _close(work: Any) -> None:  # noqa: ANN401 - typeshed knows only awaitables here
    """End a coroutine."""
    for _ in _attempts_to_close(work):
        pass


def _attempts_to_close(work: Any) -> Iterator[None]:  # noqa: ANN401 - as above
    """One for each of its `finally` blocks that awaits something.

    A generator has the exception that it handles to itself. A compiled coroutine that cannot be
    closed leaves its own behind as one that is still handled: all exceptions that this thread would
    raise afterwards, in any test, would have it as their context.
    """
    for _ in range(FINALLY_BLOCKS_MAX):
        with suppress(BaseException):
            work.close()
            return
        yield


def _describe(task: _NumberedTask[Any]) -> str:
    frames = task.get_stack(limit=1)
    where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "unknown"
    return f"  {task.get_name()} {task.host or ''} {task.get_coro()!r} at {where}"
