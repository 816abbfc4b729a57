"""Who is told what changes in a partition: one watch for each follower that fetches it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, final

from tidemill.replication.vouching.vouch import NO_VOUCH

__all__ = ["FollowerWatch", "FollowerWatches"]

NO_OFFSET: Final = -1
FOREVER: Final = float("inf")


class FollowerWatch(Protocol):
    """What one follower has to be told of one partition, which says when that changes."""

    def grew(self) -> None:
        """Records were appended."""
        ...

    def mark_moved(self) -> None:
        """The high watermark or the log start is another one."""
        ...

    def role_changed(self) -> None:
        """This broker leads no longer, or in another epoch."""
        ...

    def detach(self) -> None:
        """Another watch takes its place."""
        ...

    @property
    def vouched_until(self) -> float:
        """Until when the follower vouches for us in the epoch in which we lead (boot time)."""
        ...


@final
class FollowerWatches:
    """The watches on one partition, by broker."""

    __slots__ = ("_told_log_start", "_watches")

    def __init__(self) -> None:
        self._watches: dict[int, FollowerWatch] = {}
        self._told_log_start = NO_OFFSET

    def find(self, broker_id: int) -> FollowerWatch | None:
        return self._watches.get(broker_id)

    def add(self, broker_id: int, watch: FollowerWatch) -> None:
        """Tell `watch` what changes, in place of the one that this follower had."""
        former = self._watches.get(broker_id)
        if former is not None:
            former.detach()
        self._watches[broker_id] = watch

    def remove(self, broker_id: int, watch: FollowerWatch) -> None:
        """Tell it no more; does nothing if another one has taken its place."""
        if self._watches.get(broker_id) is watch:
            del self._watches[broker_id]

    def vouched_until(self, broker_ids: Iterable[int]) -> float:
        """Until when all of these followers vouch for us."""
        until = FOREVER
        for broker_id in broker_ids:
            watch = self._watches.get(broker_id)
            until = min(until, NO_VOUCH if watch is None else watch.vouched_until)
        return until

    # HOT PATH: the next two run for every batch; most partitions of one broker have no watch.

    def grew(self) -> None:
        if self._watches:
            for watch in self._watches.values():
                watch.grew()

    def mark_moved(self) -> None:
        if self._watches:
            for watch in self._watches.values():
                watch.mark_moved()

    def log_starts_at(self, offset: int) -> None:
        """Retention and DeleteRecords move the log start, and nobody waits for that."""
        if offset != self._told_log_start:
            self._told_log_start = offset
            self.mark_moved()

    def role_changed(self) -> None:
        for watch in self._watches.values():
            watch.role_changed()
