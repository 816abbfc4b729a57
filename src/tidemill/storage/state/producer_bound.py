"""The bound over the idempotent producers of all logs of one broker (S38).

A log bounds its own producers, but a broker may have thousands of logs, and a client can open a new
producer for every request. The bound counts the entries of all logs. When there are too many, the
entry that is idle longest goes, whichever log it is in.

Each log keeps its entries in the order of their last append, so the oldest entry of all is the
first entry of some log. A heap has each log with the time of its first entry, as it was when the
heap last looked. That time only rises while the log lives on, so a log on top of the heap whose
time has risen is put back, and the first one whose time still holds has the oldest entry. Appends
of known producers cost nothing here.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import final

from tidemill.storage.state.producer_state import ProducerStates

__all__ = ["ProducerBound", "ProducerLimits"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLimits:
    """How long and how many producers a data directory remembers."""

    expiration_ms: int = 24 * 3600 * 1000
    """Without an append for this long, a producer is forgotten."""
    entries_max: int = 100_000
    """Over all logs; a producer counts once in each log that it writes to. About 1.3 KB each."""


@final
class ProducerBound:
    """Counts the entries of the logs that it adopted. For the loop only."""

    def __init__(self, *, entries_max: int) -> None:
        self._entries_max = entries_max
        self.count = 0
        self._adopted: set[ProducerStates] = set()
        self._heap: list[tuple[int, int, ProducerStates]] = []
        """Adopted logs: when the first entry appended, a number for equal times, the entries."""
        self._in_heap: set[ProducerStates] = set()
        """Every adopted log with entries, and empty or released ones that it has not met yet."""
        self._sequence = 0

    def adopt(self, states: ProducerStates) -> None:
        """Count these entries from now on."""
        self._adopted.add(states)
        states.watch(self._counted)
        self._counted(states, len(states))

    def release(self, states: ProducerStates) -> None:
        """Their log is deleted."""
        if states in self._adopted:
            states.watch(None)
            self._adopted.discard(states)
            self.count -= len(states)

    def _counted(self, states: ProducerStates, difference: int) -> None:
        self.count += difference
        if difference <= 0:
            return
        if states not in self._in_heap:
            self._push(states)
        while self.count > self._entries_max:
            self._drop_oldest()

    def _push(self, states: ProducerStates) -> None:
        oldest_ms = states.try_oldest_ms()
        if oldest_ms is not None:
            self._sequence += 1
            self._in_heap.add(states)
            heapq.heappush(self._heap, (oldest_ms, self._sequence, states))

    def _drop_oldest(self) -> None:
        while True:
            known_ms, _, states = self._heap[0]
            oldest_ms = states.try_oldest_ms()
            if states in self._adopted and oldest_ms is not None and oldest_ms <= known_ms:
                states.drop_oldest()
                return
            heapq.heappop(self._heap)
            self._in_heap.discard(states)
            if states in self._adopted:
                self._push(states)
