"""What a group did, seen by its members: who owned what, what was processed, what was committed.

Members report from their own threads; a test waits for a state of the group and looks at what is
wrong. Wrong is a partition with two owners at a time (I26), a record that was passed over, and a
commit that went back.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import final

__all__ = ["DEADLINE_S", "GroupWatch", "Log"]

DEADLINE_S = 60.0
"""For what takes a second or two; a test machine may be busy."""

Log = tuple[str, int]
"""Topic and partition."""


@final
class GroupWatch:
    """The common memory of the members of one group."""

    def __init__(self) -> None:
        self.owner: dict[Log, str] = {}
        self.offsets: dict[Log, list[int]] = defaultdict(list)
        """Processed, in that order, by whichever member."""
        self.values: list[bytes] = []
        self.processed_by: Counter[str] = Counter()
        self.committed: dict[Log, int] = {}
        """The highest offset whose commit was answered."""
        self.assignments: Counter[str] = Counter()
        """How often each member was given or had to give something."""
        self.wrong: list[str] = []
        self._changed = threading.Condition()

    # --- what members report ---------------------------------------------------------------------

    def assigned(self, member: str, logs: Iterable[Log]) -> None:
        with self._changed:
            self.assignments[member] += 1
            for log in logs:
                if self.owner.get(log, member) != member:
                    self.wrong.append(f"{member} was given {log}, which {self.owner[log]} has")
                self.owner[log] = member
            self._changed.notify_all()

    def revoked(self, member: str, logs: Iterable[Log]) -> None:
        with self._changed:
            self.assignments[member] += 1
            for log in logs:
                if self.owner.get(log) == member:
                    del self.owner[log]
            self._changed.notify_all()

    def lost(self, member: str) -> None:
        """It was killed, or the group went on without it."""
        with self._changed:
            self.owner = {log: owner for log, owner in self.owner.items() if owner != member}
            self._changed.notify_all()

    def processed(self, member: str, log: Log, offset: int, value: bytes) -> None:
        with self._changed:
            offsets = self.offsets[log]
            if offset > max(offsets, default=-1) + 1:
                self.wrong.append(
                    f"{member} went to {log} {offset} from {max(offsets, default=-1)}"
                )
            offsets.append(offset)
            self.values.append(value)
            self.processed_by[member] += 1
            self._changed.notify_all()

    def answered_commit(self, log: Log, offset: int) -> None:
        with self._changed:
            if offset < self.committed.get(log, 0):
                self.wrong.append(f"commit of {log} went from {self.committed[log]} to {offset}")
            self.committed[log] = max(offset, self.committed.get(log, 0))
            self._changed.notify_all()

    def failed(self, member: str, error: Exception) -> None:
        with self._changed:
            self.wrong.append(f"{member} ended with {error!r}")
            self._changed.notify_all()

    # --- what tests wait for ---------------------------------------------------------------------

    def shares(self) -> dict[str, int]:
        """How many partitions each member has; those without are left out."""
        return dict(Counter(self.owner.values()))

    def wait(self, what: str, reached: Callable[[], bool]) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: reached() or bool(self.wrong), DEADLINE_S)
        assert not self.wrong, self.wrong[:5]
        assert done, f"waited in vain: {what}; shares {self.shares()}, read {len(self.values)}"

    def wait_shares(self, **shares: int) -> None:
        """Until the members have so many partitions each, and nobody else has any."""
        self.wait(f"shares {shares}", lambda: self.shares() == shares)

    def wait_values(self, values: Iterable[bytes]) -> None:
        """Until each of these was processed."""
        wanted = set(values)
        self.wait(f"{len(wanted)} values", lambda: wanted <= set(self.values))
