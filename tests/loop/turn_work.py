"""How much work each callback of the event loop does, counted in function calls.

Seconds depend on the machine and on who else uses it; the number of calls does not. A call takes
about a quarter of a microsecond, so 400,000 of them hold the loop for a tenth of a second.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, final

from tests.loop.callback_ledger import DiskUse

_PLACES_SHOWN = 12


class Turn(NamedTuple):
    """What one callback did."""

    calls: int
    callback: str
    most_called: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        places = "\n".join(f"    {count:8} {place}" for place, count in self.most_called)
        return f"{self.calls} calls in {self.callback}:\n{places}"


@final
class TurnWork:
    """The largest callback while `watching`; work of `Disk.run` does not count."""

    def __init__(self) -> None:
        self.largest = Turn(0, "", ())
        self.turns = 0
        self._counts: Counter[Any] = Counter()
        self._in_thread = 0

    def note(self, _use: DiskUse, _amount: int = 1) -> None:
        """Calls of the disk are counted by `callback_ledger.py`."""

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
        """Count the calls of every callback of every event loop of this process."""
        run, counts = asyncio.Handle._run, self._counts

        def count(frame: Any, event: str, argument: Any) -> None:
            if not self._in_thread:
                if event == "call":
                    counts[frame.f_code] += 1
                elif event == "c_call":
                    counts[getattr(argument, "__qualname__", argument)] += 1

        def watched(handle: asyncio.Handle) -> object:
            counts.clear()
            sys.setprofile(count)
            try:
                return run(handle)
            finally:
                sys.setprofile(None)
                self._end_turn(handle)

        asyncio.Handle._run = watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]

    def _end_turn(self, handle: asyncio.Handle) -> None:
        self.turns += 1
        calls = self._counts.total()
        if calls > self.largest.calls:
            places = tuple((_name(one), n) for one, n in self._counts.most_common(_PLACES_SHOWN))
            self.largest = Turn(calls, repr(handle), places)


def _name(place: Any) -> str:
    code = getattr(place, "co_qualname", None)
    return str(place) if code is None else f"{place.co_filename}:{code}"
