"""What each callback of the event loop does to the disk, compared with a budget.

A callback is what the loop runs between two looks at its sockets and timers: while it runs, nobody
else is served. So its disk calls are counted, one by one and by bytes. Calls inside of `Disk.run`
do not count: they run in a thread.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple, final

STACK_FRAMES = 14


class DiskUse(Enum):
    """What is counted."""

    SYNC = "syncs of files and directories"
    MAKE = "files made"
    NAME = "names changed or removed"
    CUT = "files cut"
    LIST = "directories listed"
    OPEN = "files opened"
    LOOK = "sizes and dates of files"
    READ = "reads"
    READ_BYTES = "bytes read"
    WRITE = "writes"
    WRITE_BYTES = "bytes written"


class Offence(NamedTuple):
    """A callback that went over a budget."""

    use: DiskUse
    amount: int
    callback: str
    stack: str
    """Where the budget was used up; compiled functions are not in it."""

    def __str__(self) -> str:
        return (
            f"{self.amount} {self.use.value} in {self.callback}, over its budget in:\n{self.stack}"
        )


@final
class CallbackLedger:
    """Counts disk calls per callback while `watching`."""

    def __init__(self, budget: Mapping[DiskUse, int]) -> None:
        self._budget = budget
        self._used: Counter[DiskUse] = Counter()
        self._over: dict[DiskUse, Offence] = {}
        """Of the callback that runs."""
        self._in_thread = 0
        self.calls_in_threads = 0
        self.offences: list[Offence] = []

    def note(self, use: DiskUse, amount: int = 1) -> None:
        """The code that runs now used this much of the disk."""
        if self._in_thread:
            self.calls_in_threads += 1
            return
        before = self._used[use]
        self._used[use] = total = before + amount
        if before <= self._budget[use] < total:
            stack = "".join(traceback.format_stack(limit=STACK_FRAMES)[:-2])
            self._over[use] = Offence(use, total, "", stack)

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """What happens inside would run in a thread of a real disk."""
        self._in_thread += 1
        try:
            yield
        finally:
            self._in_thread -= 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Every callback of every event loop of this process starts with an empty ledger."""
        run = asyncio.Handle._run

        def watched(handle: asyncio.Handle) -> object:
            try:
                return run(handle)
            finally:
                self._end_callback(handle)

        asyncio.Handle._run = watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]

    def _end_callback(self, handle: asyncio.Handle) -> None:
        for use, offence in self._over.items():
            self.offences.append(offence._replace(amount=self._used[use], callback=repr(handle)))
        self._used.clear()
        self._over.clear()
