"""The bound over the idempotent producers of all logs of one broker (S38).

A log bounds its own producers, but a broker may have thousands of logs, and a client can open a new
producer for every request. The bound counts the entries of all logs. When there are too many, the
entry that is idle longest goes, whichever log it is in.

Each log keeps its entries in the order of their last append, so the oldest entry of all is the
first entry of some log. A heap has each log with the time of its first entry, as it was when the
heap last looked. That time only rises while the log lives on, so a log on top of the heap whose
time has risen is put back, and the first one whose time still holds has the oldest entry. Appends
of known producers cost nothing here. A new entry is counted before its log has it: it is not the
one that goes, even if the clock went back.

Entries with an open transaction count, but cannot go. Where they reach the bound, the logs open no
further transaction.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final, final

from tidemill.storage.state.producer_state import ProducerStates

__all__ = ["ProducerBound", "ProducerLimits"]

HEAP_SLACK: Final = 64


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLimits:
    """How long and how many producers a data directory remembers."""

    expiration_ms: int = 24 * 3600 * 1000
    """Without an append for this long, a producer is forgotten."""
    entries_max: int = 100_000
    """Over all logs; a producer counts once in each log that it writes to. About 1.3 KB each."""


@final
class _Adopted:
    """A log in the heap; without its entries once it is released, so that they take no memory."""

    __slots__ = ("states",)

    def __init__(self, states: ProducerStates) -> None:
        self.states: ProducerStates | None = states


@final
class ProducerBound:
    """Counts the entries of the logs that it adopted. For the loop only."""

    def __init__(self, *, entries_max: int) -> None:
        self._entries_max = entries_max
        self.count = 0
        self._open_count = 0
        """Entries with an open transaction."""
        self._adopted: dict[ProducerStates, _Adopted] = {}
        self._heap: list[tuple[int, int, _Adopted]] = []
        """Adopted logs: when the first entry appended, a number for equal times, the log."""
        self._in_heap: set[_Adopted] = set()
        """Every adopted log with entries, and empty or released ones that it has not met yet."""
        self._sequence = 0

    def adopt(self, states: ProducerStates) -> None:
        """Count these entries from now on."""
        log = self._adopted[states] = _Adopted(states)
        states.watch(self)
        self.count += len(states)
        self._open_count += states.open_count
        self._push(log, states.try_oldest_ms())
        self._shrink()

    def release(self, states: ProducerStates) -> None:
        """Their log is deleted."""
        log = self._adopted.pop(states, None)
        if log is None:
            return
        states.watch(None)
        self.count -= len(states)
        self._open_count -= states.open_count
        log.states = None
        if len(self._heap) > 2 * len(self._adopted) + HEAP_SLACK:
            self._heap = [entry for entry in self._heap if entry[2].states is not None]
            self._in_heap = {entry[2] for entry in self._heap}
            heapq.heapify(self._heap)

    def may_open(self) -> bool:
        """Open transactions cannot be dropped, so together they must not pass the bound."""
        return self._open_count < self._entries_max

    def opened(self, states: ProducerStates, difference: int) -> None:
        """Transactions were opened or ended; an entry whose transaction ended may be dropped."""
        self._open_count += difference
        if difference < 0:
            self._keep_in_heap(states)

    def counted(self, states: ProducerStates, difference: int) -> None:
        """Entries come or go."""
        self.count += difference
        if difference > 0:
            self._shrink()
            self._keep_in_heap(states)

    def _keep_in_heap(self, states: ProducerStates) -> None:
        log = self._adopted[states]
        if log not in self._in_heap:
            self._push(log, states.try_oldest_ms() or 0)

    def _shrink(self) -> None:
        while self.count > self._entries_max and self._heap:
            self._drop_oldest()

    def _push(self, log: _Adopted, oldest_ms: int | None) -> None:
        if oldest_ms is not None:
            self._sequence += 1
            self._in_heap.add(log)
            heapq.heappush(self._heap, (oldest_ms, self._sequence, log))

    def _drop_oldest(self) -> None:
        """Drop one entry, or bring the top of the heap up to date."""
        known_ms, _, log = self._heap[0]
        oldest_ms = log.states.try_oldest_ms() if log.states is not None else None
        if log.states is not None and oldest_ms is not None and oldest_ms <= known_ms:
            log.states.drop_oldest()
            return
        heapq.heappop(self._heap)
        self._in_heap.discard(log)
        self._push(log, oldest_ms)
