"""What was sent, acknowledged and read, compared as it goes: a run of hours keeps little of it.

Every record has a number in its partition, which rises by one. It is forgotten once its writer
knows what became of it and every reader has seen it. Threads may call all of it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

__all__ = ["Log", "SoakLedger"]

PENDING_MAX: Final = 500_000
"""Records that somebody has still to see: beyond that the readers do not keep up."""
VIOLATIONS_MAX: Final = 100

Log = tuple[str, int]
"""Topic and partition."""


@final
@dataclass(slots=True)
class _Fate:
    """One record."""

    offset: int | None = None
    """Where its writer was told that it is."""
    is_void: bool = False
    """Its transaction was aborted."""
    seen: dict[str, int] = field(default_factory=dict)
    """Its offset, by reader."""


@final
class SoakLedger:
    """All records of one run that are not settled; `violations` are the promises broken."""

    def __init__(self, readers: Sequence[str]) -> None:
        self.violations: list[str] = []
        self.sent = 0
        self.acknowledged = 0
        self.read = dict.fromkeys(readers, 0)
        self._readers = tuple(readers)
        self._lock = threading.Lock()
        self._fates: dict[Log, dict[int, _Fate]] = {}
        self._next: dict[Log, int] = {}
        self._last_offset: dict[Log, int] = {}
        """The highest that was acknowledged."""
        self._last_seen: dict[tuple[Log, str], tuple[int, int]] = {}
        """Number and offset of what each reader saw last."""

    # --- writers ---------------------------------------------------------------------------------

    def send(self, log: Log) -> int:
        """The number of the next record."""
        with self._lock:
            number = self._next.get(log, 0)
            self._next[log] = number + 1
            self._fates.setdefault(log, {})[number] = _Fate()
            self.sent += 1
            return number

    def acknowledge(self, log: Log, number: int, offset: int) -> None:
        """Its writer knows that it stays."""
        with self._lock:
            fate = self._fates[log][number]
            if offset <= self._last_offset.get(log, -1):
                self._break(f"I2: {log} {number} was acknowledged at {offset}, as another was")
            self._last_offset[log] = max(offset, self._last_offset.get(log, -1))
            fate.offset = offset
            self.acknowledged += 1
            for reader, found in fate.seen.items():
                self._compare(log, number, reader, found, offset)
            self._settle(log, number, fate)

    def void(self, log: Log, number: int) -> None:
        """Its transaction was aborted: nobody may ever see it."""
        with self._lock:
            fate = self._fates[log][number]
            fate.is_void = True
            for reader in fate.seen:
                self._break(f"I21: {log} {number} was aborted, {reader} has seen it")

    def fail(self, what: str) -> None:
        """Something went wrong though nothing was done to the brokers."""
        with self._lock:
            self._break(what)

    # --- readers ---------------------------------------------------------------------------------

    def see(self, log: Log, number: int, offset: int, reader: str) -> None:
        """A reader got this record."""
        with self._lock:
            self.read[reader] += 1
            last_number, last_offset = self._last_seen.get((log, reader), (-1, -1))
            if number == last_number or offset <= last_offset:
                self._break(f"I4: {reader} got {log} {number} again, at {offset}")
            elif number < last_number:
                self._break(f"I5: {reader} got {log} {number} after {last_number}")
            self._last_seen[log, reader] = max((last_number, last_offset), (number, offset))
            fate = self._fates.get(log, {}).get(number)
            if fate is None:
                if number >= self._next.get(log, 0):
                    self._break(f"I3: {reader} got {log} {number}, which nobody has sent")
                return
            if fate.is_void:
                self._break(f"I21: {log} {number} was aborted, {reader} has seen it")
            fate.seen[reader] = offset
            if fate.offset is not None:
                self._compare(log, number, reader, offset, fate.offset)
            self._settle(log, number, fate)

    # --- checks ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Find what a reader has passed without seeing it; forget what was aborted and passed."""
        with self._lock:
            for log, fates in self._fates.items():
                for number in [one for one in fates if one < self._passed(log)]:
                    self._check_passed(log, number, fates[number])
            if self._pending() > PENDING_MAX:
                self._break(f"over {PENDING_MAX} records are sent and not read")

    def pending(self) -> int:
        """Acknowledged records that a reader has still to see."""
        with self._lock:
            return self._pending()

    def check_all_seen(self) -> None:
        """At the end: what was acknowledged was read by all."""
        self.check()
        with self._lock:
            for log, fates in self._fates.items():
                for number, fate in fates.items():
                    if fate.offset is not None:
                        missing = [one for one in self._readers if one not in fate.seen]
                        self._break(f"I1: {log} {number} at {fate.offset}: not seen by {missing}")

    def _pending(self) -> int:
        return sum(
            fate.offset is not None for fates in self._fates.values() for fate in fates.values()
        )

    def _passed(self, log: Log) -> int:
        """The first number that some reader has not passed."""
        return min(self._last_seen.get((log, one), (-1, -1))[0] for one in self._readers)

    def _check_passed(self, log: Log, number: int, fate: _Fate) -> None:
        if fate.is_void:
            del self._fates[log][number]
        elif fate.offset is not None:
            missing = [one for one in self._readers if one not in fate.seen]
            self._break(f"I1: {log} {number} at {fate.offset}: passed and not seen by {missing}")
            del self._fates[log][number]

    def _compare(self, log: Log, number: int, reader: str, found: int, told: int) -> None:
        if found != told:
            self._break(f"I2: {log} {number} is at {found} for {reader}, its writer heard {told}")

    def _settle(self, log: Log, number: int, fate: _Fate) -> None:
        if fate.offset is not None and len(fate.seen) == len(self._readers):
            del self._fates[log][number]

    def _break(self, what: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(what)
