"""The parent of several brokers: starts them, starts those again that end, ends all together.

It serves nothing and opens no data: whatever happens to it, the brokers' data is theirs. It ends
everything when a signal asks for it, when a broker cannot be kept running, or when a person must
mend something before a broker can start.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import final

from tidemill.cli.failures import REFUSED, WRONG_USE
from tidemill.cli.supervising.broker_child import BrokerChild, shown_exit
from tidemill.cli.supervising.broker_plan import BrokerPlan
from tidemill.cli.supervising.log_output import LogOutput
from tidemill.cli.supervising.restart_limit import RESTARTS_MAX, WINDOW_S, RestartLimit
from tidemill.core.clock import Clock
from tidemill.core.loop.lifecycle import Supervisor

__all__ = ["BrokerSupervisor"]

RESTART_AFTER_S = 1.0
STOP_S = 12.0
"""A broker stops within ten seconds."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@final
class BrokerSupervisor:
    """Runs until everything has ended."""

    def __init__(
        self,
        plans: Sequence[BrokerPlan],
        *,
        facts: str,
        output: LogOutput,
        all_ready: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """`facts` is the line about what all brokers share; `all_ready` gets their addresses."""
        self._children = [BrokerChild(plan, output) for plan in plans]
        self._facts = facts
        self._tell_ready = all_ready
        self._output = output
        self._clock = clock
        self._stopping = asyncio.Event()
        self._all_ready = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._kept = len(plans)
        """Brokers that run, or are about to be started again."""
        self._failed = False
        self._tasks = Supervisor(self._part_failed)

    async def run(self) -> int:
        """Run the brokers; the exit code of the command."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does with SIGHUP
                loop.add_signal_handler(number, self.stop)
        for child in self._children:
            self._tasks.spawn(child.name, self._keep(child))
        self._tasks.spawn("ready line", self._announce())
        await self._stopping.wait()
        await self._end_all()
        await self._tasks.stop()
        await self._output.flush()
        return REFUSED if self._failed else 0

    def stop(self) -> None:
        """End all brokers, then `run`."""
        self._stopping.set()

    # --- one broker ------------------------------------------------------------------------------

    async def _keep(self, child: BrokerChild) -> None:
        """Run a broker again and again, until all end or it cannot be kept running."""
        restarts = RestartLimit()
        try:
            while not self._stopping.is_set():
                exit_code = await child.run(lambda: self._became_ready(child))
                if self._stopping.is_set():
                    self._failed |= exit_code not in {0, -signal.SIGTERM}
                elif self._may_restart(child, exit_code, restarts):
                    await self._pause()
        finally:
            self._kept -= 1
            if not self._kept:
                self._all_ended.set()

    def _may_restart(self, child: BrokerChild, exit_code: int, restarts: RestartLimit) -> bool:
        ended = f"{child.name} ended with {shown_exit(exit_code)}"
        if not child.address and exit_code == WRONG_USE:
            self._fail(f"{ended}: mend what its last line says, then start again")
            return False
        if not restarts.try_take(self._clock.monotonic()):
            self._fail(
                f"{ended}, {RESTARTS_MAX + 1} times in {WINDOW_S / 60:.0f} min: all brokers stop; "
                "its lines above say why, `tidemill doctor` checks this machine"
            )
            return False
        self._say(
            f"{ended}; starting it again in {RESTART_AFTER_S:.0f} s "
            f"({restarts.taken} of {RESTARTS_MAX} in {WINDOW_S / 60:.0f} min)"
        )
        return True

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(RESTART_AFTER_S):
                await self._stopping.wait()

    # --- all brokers -----------------------------------------------------------------------------

    def _became_ready(self, child: BrokerChild) -> None:
        if self._all_ready.is_set():
            self._say(f"{child.name} is ready again, pid {child.pid}")
        elif all(one.address for one in self._children):
            self._all_ready.set()

    async def _announce(self) -> None:
        """The facts first: whoever waits for the addresses finds them."""
        await self._all_ready.wait()
        for child in self._children:
            where = f"{child.address} {child.plan.data_dir}"
            self._output.say(f"{child.name} {where} pid {child.pid}")
        self._output.say(self._facts)
        await self._output.flush()
        self._tell_ready(",".join(child.address for child in self._children))

    async def _end_all(self) -> None:
        for child in self._children:
            child.end()
        try:
            async with asyncio.timeout(STOP_S):
                await self._all_ended.wait()
        except TimeoutError:
            for child in self._children:
                if child.is_running:
                    self._failed = True
                    self._say(f"{child.name} did not end within {STOP_S:.0f} s: SIGKILL")
                    child.send(signal.SIGKILL)
            await self._all_ended.wait()

    def _fail(self, reason: str) -> None:
        self._failed = True
        self._say(reason)
        self._stopping.set()

    def _part_failed(self, part: str, error: BaseException) -> None:
        self._fail(f"{part} failed: {error!r}")

    def _say(self, line: str) -> None:
        self._output.say(f"[supervisor] {line}")
