"""What the members of a group did: partitions owned, records processed, offsets committed.

Members report from their own threads; a test waits for a state of the group and then checks for
errors. Errors are a partition with two owners at a time (I26), a skipped record, and a commit that
went back.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import final

__all__ = ["DEADLINE_S", "GroupWatch", "Log"]

DEADLINE_S = 60.0
"""For steps that take a second or two; a test machine may be busy."""

Log = tuple[str, int]
"""Topic and partition."""


@final
class GroupWatch:
    """The shared record of the members of one group."""

    def __init__(self) -> None:
        self.owner: dict[Log, str] = {}
        self.offsets: dict[Log, list[int]] = defaultdict(list)
        """Processed by any member, in that order."""
        self.values: list[bytes] = []
        self.processed_by: Counter[str] = Counter()
        self.committed: dict[Log, int] = {}
        """The highest offset whose commit was acknowledged."""
        self.assignments: Counter[str] = Counter()
        """How often the assignment of each member changed."""
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
        """The member was killed, or the group has removed it."""
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
        """The number of partitions of each member that has any."""
        return dict(Counter(self.owner.values()))

    def wait(self, what: str, reached: Callable[[], bool]) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: reached() or bool(self.wrong), DEADLINE_S)
        assert not self.wrong, self.wrong[:5]
        assert done, f"waited in vain: {what}; shares {self.shares()}, read {len(self.values)}"

    def wait_shares(self, **shares: int) -> None:
        """Wait until the members have these numbers of partitions and no other member has any."""
        self.wait(f"shares {shares}", lambda: self.shares() == shares)

    def wait_values(self, values: Iterable[bytes]) -> None:
        """Wait until each of these records was processed."""
        wanted = set(values)
        self.wait(f"{len(wanted)} values", lambda: wanted <= set(self.values))
